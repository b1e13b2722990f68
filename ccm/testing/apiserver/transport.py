"""Transport of `ccm.kube.client` to a store in the same process.

No network is needed, and time can be virtual.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec

from ccm.kube import errors
from ccm.kube.client import Client
from ccm.kube.transport import ServerClock
from ccm.testing.apiserver import api, requests
from ccm.testing.apiserver import errors as refusals
from ccm.testing.apiserver import store as stores


class MemoryTransport:
    """In-process implementation of `ccm.kube.transport.Transport`."""

    user_agent = "memory"

    def __init__(self, store: stores.ObjectStore | None = None, *, is_strict: bool = True) -> None:
        self.clock = ServerClock()
        self.store = stores.ObjectStore() if store is None else store
        self.api = api.Api(self.store, is_strict=is_strict)
        self._front = requests.RequestHandler(self.api)

    def client(self, name: str = "") -> Client:
        return Client(self, name=name)  # type: ignore[arg-type]

    async def do(
        self, method: str, path: str, *, body: bytes | None, content_type: str, **rest: Any
    ) -> bytes:
        return self.answer(method, path, body or b"", content_type, rest.get("query"))

    def answer(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        content_type: str = "",
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        """Process one request.

        Raises:
            KubeError: the request is refused.
        """
        fields: Any = {"method": method, "path": path, "body": body}
        request = api.ApiRequest(**fields, content_type=content_type or api.JSON, query=query or {})
        with _refusals_as_client_errors():
            return self._front.handle(request).body

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], **_: Any
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Watch; yield the lines of the response."""
        request = api.ApiRequest(method="GET", path=path, query={**query, "watch": "1"})
        with _refusals_as_client_errors():
            chunks = self._front.watch(request)
        assert chunks is not None

        async def lines() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                for line in chunk.splitlines():
                    yield line

        yield lines()


@contextlib.contextmanager
def _refusals_as_client_errors() -> Iterator[None]:
    try:
        yield
    except refusals.StatusError as error:
        status = msgspec.json.encode(error.status())
        raise errors.from_response(error.code, {}, status) from None
