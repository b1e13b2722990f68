"""The client of the simulated cloud: wire types, paging and the error table.

Everything the cloud may answer becomes a value or a class of `ccm.cloud.errors`:
nothing of the HTTP library leaves this module. An absence is believed only where the
cloud says so in its own words (404 with the code `not_found`); a 404 of some proxy, an
empty or garbled body is a fault like any other, because an absence deletes nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

import aiohttp
import msgspec

from ccm import cloud

from . import config

T = TypeVar("T")

PAGE_LIMIT = 500
"""Instances to ask for at once; the most the cloud gives."""

RETRY_AFTER_S = 1.0
"""Assumed where a 429 does not say, or not readably, when to come back."""

ERRORS: Mapping[int, type[cloud.CloudError]] = {
    400: cloud.InvalidArgument,
    401: cloud.Unauthenticated,
    403: cloud.PermissionDenied,
    408: cloud.DeadlineExceeded,
    409: cloud.Aborted,
    504: cloud.DeadlineExceeded,
}
"""HTTP status -> what it means; besides these 404 and 429 (below), other 5xx are
`Unavailable` and the rest is `Unknown`."""


class Address(msgspec.Struct, frozen=True):
    """One address; kinds may come that we do not know."""

    kind: str
    value: str


class Server(msgspec.Struct, frozen=True):
    """An instance, with the fields we use; states may come that we do not know."""

    id: str
    name: str
    state: str
    type: str = ""
    zone: str = ""
    region: str = ""
    addresses: tuple[Address, ...] = ()
    labels: dict[str, str] = {}


class _Page(msgspec.Struct, frozen=True):
    """A page; without `next_cursor` it is broken, lest a listing be cut short silently."""

    instances: tuple[Server, ...]
    next_cursor: str | None


class _Error(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""
    request_id: str = ""


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _Error


class Client:
    """Calls of the simulated cloud; use `open_client`.

    Every method raises `CloudError` classes only: those of `ERRORS`, `RetryAfter` on 429,
    `DeadlineExceeded` when the cloud is too slow, `Unavailable` when it cannot be reached,
    `Unknown` when its answer makes no sense.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def server(self, instance_id: str) -> Server:
        """One instance by its ID, which must be safe in a path; `NotFound` if there is none."""
        found = await self._get(f"/v1/instances/{instance_id}", {}, Server)
        if found.id != instance_id:
            raise cloud.Unknown(f"asked for instance {instance_id}, got {found.id!r}")
        return found

    async def servers(self, name: str | None = None) -> tuple[list[Server], int]:
        """All instances, or those of one name, and the number of requests it took."""
        found: list[Server] = []
        query = {"limit": str(PAGE_LIMIT)}
        if name is not None:
            query["name"] = name
        cursors: set[str] = set()
        while True:
            page = await self._get("/v1/instances", query, _Page)
            found += page.instances
            if page.next_cursor is None:
                return found, len(cursors) + 1
            if page.next_cursor in cursors:
                raise cloud.Unknown(f"the listing never ends: cursor {page.next_cursor!r} again")
            cursors.add(page.next_cursor)
            query["cursor"] = page.next_cursor

    async def _get(self, path: str, query: Mapping[str, str], answer: type[T]) -> T:
        url = self._url + path
        try:
            async with self._session.get(url, params=query, allow_redirects=False) as response:
                body = await response.read()
        except TimeoutError as error:
            raise cloud.DeadlineExceeded(f"GET {path}: no answer in time") from error
        except aiohttp.ClientError as error:
            raise cloud.Unavailable(f"GET {path}: {str(error) or type(error).__name__}") from error
        if response.status != 200:
            raise _failure(f"GET {path}", response, body)
        try:
            return msgspec.json.decode(body, type=answer)
        except msgspec.MsgspecError as error:
            raise cloud.Unknown(f"GET {path}: unreadable answer: {error}") from error


@contextlib.asynccontextmanager
async def open_client(settings: config.Config) -> AsyncIterator[Client]:
    """A client with its own pool of connections, closed with the context."""
    timeout = aiohttp.ClientTimeout(
        total=settings.timeout.total_seconds(), connect=settings.connect_timeout.total_seconds()
    )
    headers = {"Authorization": f"Bearer {settings.token}"}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=False) as session:
        yield Client(session, settings.url)


def _failure(what: str, response: aiohttp.ClientResponse, body: bytes) -> cloud.CloudError:
    """The error for an answer that is none of success."""
    said = _explanation(body)
    status = response.status
    text = f"{what}: HTTP {status}"
    if said.code:
        text += f" {said.code}: {said.message} ({said.request_id})"
    if status == 429:
        return cloud.RetryAfter(text, seconds=_retry_after(response))
    if status == 404 and said.code == "not_found":
        return cloud.NotFound(text)
    otherwise = cloud.Unavailable if status >= 500 else cloud.Unknown
    return ERRORS.get(status, otherwise)(text)


def _explanation(body: bytes) -> _Error:
    try:
        return msgspec.json.decode(body, type=_ErrorAnswer).error
    except msgspec.MsgspecError:
        return _Error()


def _retry_after(response: aiohttp.ClientResponse) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else RETRY_AFTER_S
