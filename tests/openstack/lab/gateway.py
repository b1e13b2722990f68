"""All services of a real cloud behind one address, with the counts and faults of the fake.

Operations have the names of the fake, so a call that the fake does not know fails here too. The
catalogue in a granted token has URLs of this gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import msgspec
import yarl
from aiohttp import web

from ccm.testing import fake_api
from ccm.testing.fake_api import Endpoint, Witness
from providers.openstack import client
from providers.openstack.testing import identity, server
from providers.openstack.testing.state import ApiError

KEYSTONE = "identity"
"""Key of Keystone's URL, which clients know without a catalogue."""

_PASSED = ("OpenStack-API-Version", "Retry-After", "X-Subject-Token")
"""Headers of responses that clients get."""


class LabGateway(server.Service):
    """Forwards calls to the services of a cloud; faults and counts are those of the fake.

    Args:
        urls: service type -> URL in the catalogue; also that of `KEYSTONE`.
        session: for the calls.
        witness: called for every call that a service answered.

    Attributes:
        address: URL in the catalogue; empty = that of the request.
        on_drop: called before a connection is cut by a fault.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        session: aiohttp.ClientSession,
        *,
        witness: Witness | None = None,
    ) -> None:
        super().__init__(witness=witness)
        self._urls = urls
        self._session = session
        self.address = ""
        self.on_drop: Callable[[], object] | None = None

    def headers(self, request: web.Request) -> Mapping[str, str]:
        """Return none: responses have the headers of their service."""
        return {}

    async def _handle(self, row: Endpoint, request: web.Request, body: bytes) -> web.Response:
        delay_s, fault = self.script.match(row.name)
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        if fault is None:
            return await self._forward(row, request, body)
        if fault.kind == "novelty":
            response = await self._forward(row, request, body)
            if isinstance(response.body, bytes) and response.status < 300:
                answer = self.altered_answer(msgspec.json.decode(response.body), fault)
                response.body = msgspec.json.encode(answer)
            return response
        if fault.applied:
            await self._forward(row, request, body)
        if fault.kind == "drop" and self.on_drop:
            self.on_drop()
        try:
            return await self._break(request, fault)
        except ApiError as error:
            raise error.shape(request.path.split("/")[1]) from error

    async def _forward(self, row: Endpoint, request: web.Request, body: bytes) -> web.Response:
        kept = ("Accept", "Content-Type", "If-Match", "OpenStack-API-Version", "X-Auth-Token")
        headers = {name: request.headers[name] for name in kept if name in request.headers}
        url = self._target(row, request)
        async with self._session.request(
            request.method, url, data=body or None, headers=headers, allow_redirects=False
        ) as answered:
            content = await answered.read()
            if request.path == server.TOKENS and answered.status == 201:
                content = self._with_own_catalogue(request, content)
            # So marked, the call gets to the witness.
            response = fake_api._ApiResponse(
                body=content or None,
                status=answered.status,
                content_type=answered.content_type if content else None,
            )
            for name in _PASSED:
                if name in answered.headers:
                    response.headers[name] = answered.headers[name]
        return response

    def _target(self, row: Endpoint, request: web.Request) -> yarl.URL:
        """Return the URL of a request at its service; `page_size` limits the pages of listings."""
        kind = KEYSTONE if request.path == server.TOKENS else row.name.split("/")[1]
        prefix = row.prefix or "/identity/v3"
        url = yarl.URL(self._urls[kind] + request.raw_path.removeprefix(prefix), encoded=True)
        size = self.settings.page_size
        if size < 1000 and request.method == "GET" and not row.path.endswith(("}", "/")):
            url = url.update_query(limit=str(min(size, int(url.query.get("limit", size)))))
        return url

    def _with_own_catalogue(self, request: web.Request, content: bytes) -> bytes:
        answer: dict[str, Any] = msgspec.json.decode(content)
        own = self.address or f"{request.scheme}://{request.host}"
        for service in answer["token"]["catalog"]:
            for endpoint in service["endpoints"]:
                if path := identity.PATHS.get(service["type"]):
                    endpoint["url"] = f"{own}{path}"
        return msgspec.json.encode(answer)


async def urls_of(api: client.Client, auth_url: str) -> Mapping[str, str]:
    """Return the URLs of the services, without versions where the provider adds these."""
    urls = {KEYSTONE: auth_url.rstrip("/")}
    for kind in ("compute", "network", "load-balancer", "image"):
        url = await api.keystone.endpoint(kind)
        urls[kind] = client._VERSION.sub("", url) if kind in client._UNVERSIONED else url
    return urls
