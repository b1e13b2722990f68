"""Typed calls to the API server: one `Client` per controller, one `Resource` per kind.

A client has a name (the end of its user agent) and a rate limiter of its own; all
clients share one transport. Objects are decoded into the narrow types of `ccm.model`;
therefore changes are written as patches, and only kinds that are modelled completely
may be replaced.

Texts in messages that are written to the API server lose their secrets and are cut (`encode`).

Every call may raise `errors.ApiError` or `errors.Unreachable`, and nothing else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from ccm.base import drain, redact
from ccm.base.throttle import Limiter, Unlimited
from ccm.kube import decode, metrics
from ccm.kube.decode import Page, WatchEvent
from ccm.kube.resources import Kind
from ccm.kube.transport import Transport
from ccm.model.meta import KubeObject

__all__ = ["PAGE_SIZE", "Client", "Page", "Resource", "WatchEvent"]

T = TypeVar("T", bound=KubeObject)

PAGE_SIZE = 500
"""Objects per page; decoding one page stalls the event loop for a few milliseconds
only (the chunk size of client-go's pager)."""

IDLE_GRACE_S = 30.0
"""How much longer than the server's own time limit a watch may be silent."""

_JSON = "application/json"
_STRATEGIC = "application/strategic-merge-patch+json"
_MERGE = "application/merge-patch+json"

_ENCODER = msgspec.json.Encoder()


class Client:
    """Calls in the name of one controller.

    Args:
        transport: the wire, shared by all clients of the process.
        name: suffix of the user agent, such as `node-controller`; empty for none.
        limiter: waits before each attempt of each request; unlimited by default.
        timeout_s: limit of one attempt of one call, in seconds; watches have none.
        graceful: whether a stop lets what changes something come to its end, with all attempts:
            a request cut on its way may still be carried out, when somebody else leads already.
        urgent: whether its calls wait behind no other request; for the Lease.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        name: str = "",
        limiter: Limiter | None = None,
        timeout_s: float = 30.0,
        graceful: bool = False,
        urgent: bool = False,
    ) -> None:
        self._transport = transport
        self._limiter: Limiter = limiter if limiter is not None else Unlimited()
        self._timeout_s = timeout_s
        self._graceful = graceful
        self._urgent = urgent
        self.name = name
        self.user_agent = f"{transport.user_agent}/{name}" if name else transport.user_agent

    def resource(self, kind: Kind[T]) -> Resource[T]:
        """Calls about one kind."""
        return Resource(self, kind)

    def server_time(self) -> datetime:
        """What time it is at the API server, whatever our own clock says."""
        return self._transport.clock.now()

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = _JSON,
        retry: bool = True,
    ) -> bytes:
        """Any request, such as `GET /version` or a review; `path` is encoded already."""
        changes = self._graceful and method != "GET"
        async with drain.change() if changes else contextlib.nullcontext():
            return await self._transport.do(
                method,
                path,
                query=query,
                body=body,
                content_type=content_type,
                timeout_s=self._timeout_s,
                limiter=self._limiter,
                user_agent=self.user_agent,
                retry=retry,
                urgent=self._urgent,
            )

    def lines(
        self, path: str, *, query: Mapping[str, str], idle_timeout_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A streamed GET, line by line."""
        return self._transport.stream(
            path,
            query=query,
            limiter=self._limiter,
            idle_timeout_s=idle_timeout_s,
            user_agent=self.user_agent,
        )


class Resource(Generic[T]):
    """Calls about one kind of object; build it with `Client.resource`.

    For a namespaced kind every call about one object needs a namespace; a list or a
    watch without one covers all namespaces.
    """

    def __init__(
        self, client: Client, kind: Kind[T], *, namespace: str = "", field_selector: str = ""
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._field_selector = field_selector
        self.kind = kind

    def within(self, namespace: str) -> Resource[T]:
        """Return the objects of one namespace, to be listed and watched."""
        return Resource(self._client, self.kind, namespace=namespace)

    def where(self, field_selector: str) -> Resource[T]:
        """Return the objects with these fields, in all namespaces, to be listed and watched."""
        return Resource(self._client, self.kind, field_selector=field_selector)

    async def get(self, name: str, *, namespace: str = "") -> T:
        """Read one object as it is now."""
        return await self._call("GET", self._path(name, namespace))

    async def list_page(
        self,
        *,
        namespace: str = "",
        limit: int = PAGE_SIZE,
        continue_: str = "",
        field_selector: str = "",
    ) -> Page[T]:
        """Read one page of the newest state.

        Args:
            namespace: empty for all.
            limit: most objects in the answer.
            continue_: the token of the page before; empty for the first.
            field_selector: as in kubectl.
        """
        fields = field_selector or self._field_selector
        query = {"limit": str(limit), "continue": continue_, "fieldSelector": fields}
        path = self.kind.path(namespace=namespace or self._namespace)
        body = await self._client.raw("GET", path, query=_filled(query))
        return decode.decode_page(self.kind, body)

    async def pages(
        self, *, namespace: str = "", field_selector: str = ""
    ) -> AsyncIterator[Page[T]]:
        """All pages, one after the other; a token that expires in between raises Gone."""
        token = ""
        while True:
            page = await self.list_page(
                namespace=namespace, continue_=token, field_selector=field_selector
            )
            yield page
            token = page.continue_
            if not token:
                return

    async def create(self, obj: T | Mapping[str, Any], *, namespace: str = "") -> T:
        """Create an object; apiVersion and kind are filled in.

        The namespace is taken from the object's metadata if it is not given.
        """
        content = self._content(obj)
        where = namespace or str((content.get("metadata") or {}).get("namespace") or "")
        self._need_namespace(where)
        path = self.kind.path(namespace=where)
        return await self._call("POST", path, body=content)

    async def replace(self, obj: T, *, subresource: str = "") -> T:
        """Write an object as a whole (PUT), guarded by its resourceVersion.

        Raises:
            TypeError: the kind is not modelled completely, so a PUT would erase fields.
        """
        if not self.kind.complete:
            raise TypeError(f"{self.kind.kind} is not modelled completely: patch it instead")
        path = self._path(obj.name, obj.namespace, subresource)
        return await self._call("PUT", path, body=self._content(obj))

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """Strategic merge patch: lists with a merge key are merged; built-in kinds only."""
        path = self._path(name, namespace, subresource)
        return await self._call("PATCH", path, body=patch, content_type=_STRATEGIC)

    async def patch_merge(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """JSON merge patch (RFC 7386): lists are replaced, None removes a field."""
        path = self._path(name, namespace, subresource)
        return await self._call("PATCH", path, body=patch, content_type=_MERGE)

    async def delete(
        self,
        name: str,
        *,
        namespace: str = "",
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period_s: int | None = None,
    ) -> None:
        """Delete an object.

        Args:
            name: of the object.
            namespace: of the object.
            uid: delete it only if it has this UID.
            resource_version: delete it only if it has this version.
            grace_period_s: how long a Pod may take to end; None = as it says itself.

        Raises:
            errors.Conflict: the object has another UID, or another version, than the one given.
            errors.NotFound: there is no such object.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        only = {"uid": uid, "resourceVersion": resource_version}
        if preconditions := {key: value for key, value in only.items() if value is not None}:
            options["preconditions"] = preconditions
        if grace_period_s is not None:
            options["gracePeriodSeconds"] = grace_period_s
        path = self._path(name, namespace)
        metrics.writes(self.kind.plural).inc()
        await self._client.raw("DELETE", path, body=_ENCODER.encode(options))

    async def evict(self, name: str, *, namespace: str, uid: str) -> None:
        """Ask for a Pod to be deleted as far as its disruption budget allows it now; tried once.

        Raises:
            errors.TooManyRequests: not now.
            errors.Conflict: the Pod has another UID.
            errors.NotFound: there is no such Pod.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = self._path(name, namespace, "eviction")
        metrics.writes("pods/eviction").inc()
        # A refusal is an answer, which whoever asked has to know at once.
        await self._client.raw("POST", path, body=_ENCODER.encode(body), retry=False)

    @contextlib.asynccontextmanager
    async def watch(
        self,
        *,
        namespace: str = "",
        resource_version: str = "",
        timeout_s: int,
        send_initial_events: bool = False,
        field_selector: str = "",
        idle_timeout_s: float | None = None,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """Follow changes; the iterator ends when the server ends the watch.

        Args:
            namespace: empty for all.
            resource_version: where to start; empty: now, with the present state first.
            timeout_s: seconds after which the server shall end the watch.
            send_initial_events: begin with the present objects as ADDED events, ended by
                a bookmark with `initial_events_end`.
            field_selector: as in kubectl.
            idle_timeout_s: longest silence; by default a little above `timeout_s`.

        Raises:
            errors.ApiError: the server refused, or sent an ERROR event (410: Gone).
            errors.Unreachable: the connection was cut, was silent, or carried garbage.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
            "resourceVersion": resource_version,
            "fieldSelector": field_selector or self._field_selector,
        }
        query = _filled(query)
        if send_initial_events:
            query |= {
                "resourceVersion": resource_version,
                "sendInitialEvents": "true",
                "resourceVersionMatch": "NotOlderThan",
            }
        idle = timeout_s + IDLE_GRACE_S if idle_timeout_s is None else idle_timeout_s
        path = self.kind.path(namespace=namespace or self._namespace)
        async with (
            self._client.lines(path, query=query, idle_timeout_s=idle) as lines,
            contextlib.aclosing(self._events(lines)) as events,
        ):
            yield events

    async def _events(self, lines: AsyncIterator[bytes]) -> AsyncGenerator[WatchEvent[T], None]:
        async for line in lines:
            yield decode.decode_event(self.kind, line)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
    ) -> T:
        if method != "GET":
            metrics.writes(self.kind.plural).inc()
        sent = None if body is None else encode(body)
        answer = await self._client.raw(method, path, body=sent, content_type=content_type)
        return decode.decode_object(self.kind, answer)

    def _content(self, obj: T | Mapping[str, Any]) -> dict[str, Any]:
        plain = msgspec.to_builtins(obj) if isinstance(obj, msgspec.Struct) else obj
        return {"apiVersion": self.kind.api_version, "kind": self.kind.kind, **plain}

    def _path(self, name: str, namespace: str, subresource: str = "") -> str:
        self._need_namespace(namespace)
        if not name:
            raise ValueError(f"a {self.kind.kind} needs a name")
        return self.kind.path(namespace=namespace, name=name, subresource=subresource)

    def _need_namespace(self, namespace: str) -> None:
        if self.kind.namespaced != bool(namespace):
            word = "needs a" if self.kind.namespaced else "has no"
            raise ValueError(f"a {self.kind.kind} {word} namespace")


def _filled(query: Mapping[str, str]) -> dict[str, str]:
    """The parameters that say something."""
    return {name: value for name, value in query.items() if value}


_TEXTS = frozenset({"error", "message", "note"})
_NAMED_BY_OTHERS = frozenset({"annotations", "data", "labels"})
_HOST = re.compile(r"[A-Za-z0-9.*_-]{1,253}")
_ANY = re.compile(rb'"(?:error|hostname|message|note)":"')


def encode(body: Mapping[str, Any]) -> bytes:
    """An object or a patch as JSON; what people read in it is fit for everybody."""
    try:
        sent = _ENCODER.encode(body)
    except UnicodeEncodeError:  # half a character in somebody's words, which are mended
        return _ENCODER.encode(_public("", body))
    # Most writes hold no such text, and are many.
    return _ENCODER.encode(_public("", body)) if _ANY.search(sent) else sent


def _public(name: str, value: Any) -> Any:
    if isinstance(value, str):  # most are
        if name in _TEXTS or (name == "hostname" and not _HOST.fullmatch(value)):
            return redact.public(value)
        return value
    if isinstance(value, Mapping):
        # What people name themselves, such as an annotation "note", is no text of ours.
        return {
            key: one if key in _NAMED_BY_OTHERS else _public(str(key), one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_public(name, one) for one in value]
    return value
