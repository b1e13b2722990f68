"""Typed calls to the API server: one `Client` per controller, one `Resource` per kind.

A client has a name (the end of its user agent) and its own limiters of rate and concurrency; all
clients share one transport. Objects are decoded into the types of `ccm.model`, which lack many
fields. So changes are written as patches, and only objects of complete kinds may be replaced (PUT).

In messages that are written to the API server, such as the message of an Event, secrets are masked
and long texts are cut (`encode`).

Every call may raise `errors.ApiError` or `errors.Unreachable`; a write through a read-only
transport raises `errors.WriteRefused`.
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
from ccm.base.throttle import ConcurrencyLimiter, Limiter, Unlimited
from ccm.kube import decode, metrics
from ccm.kube.decode import Page, WatchEvent
from ccm.kube.resources import ResourceKind
from ccm.kube.transport import Transport
from ccm.model.meta import KubeObject

__all__ = ["PAGE_SIZE", "Client", "Page", "Resource", "WatchEvent"]

T = TypeVar("T", bound=KubeObject)

PAGE_SIZE = 500
"""Objects per page (chunk size of client-go's pager): decoding a page takes a few milliseconds."""

IDLE_GRACE_S = 30.0
"""Seconds by which the idle timeout of a watch exceeds the requested duration: a busy server may
end the watch late. After a longer silence the connection counts as dead."""

_JSON = "application/json"
_STRATEGIC = "application/strategic-merge-patch+json"
_MERGE = "application/merge-patch+json"

_ENCODER = msgspec.json.Encoder()


class Client:
    """Calls of one controller.

    Args:
        transport: transport, shared by all clients of the process.
        name: suffix of the user agent, such as `node-controller`; empty = none.
        limiter: rate limiter, awaited before each attempt of each request; None = unlimited.
        timeout_s: time limit in seconds of each attempt of a call, not for watches. client-go has
            no limit by default; the limit ends a call to a server that hangs.
        graceful: whether a draining process (`ccm.base.drain`) lets writes in flight finish, with
            all attempts: the server might execute a cancelled write when another replica is
            already the leader.
        urgent: whether calls bypass the lease guard; for requests about the Lease.
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
        self._concurrency = ConcurrencyLimiter()
        self._timeout_s = timeout_s
        self._graceful = graceful
        self._urgent = urgent
        self.name = name
        self.user_agent = f"{transport.user_agent}/{name}" if name else transport.user_agent

    def resource(self, kind: ResourceKind[T]) -> Resource[T]:
        """Return the `Resource` of a kind, for calls with this client."""
        return Resource(self, kind)

    def server_time(self) -> datetime:
        """Return the API server's time; see `ServerClock`."""
        return self._transport.clock.now()

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = _JSON,
        headers: Mapping[str, str] | None = None,
        retry: bool = True,
    ) -> bytes:
        """Send any request, such as `GET /version`, and return the body of the response.

        `path` must be percent-encoded. `headers`, `retry`: see `Transport.do`.
        """
        changes = self._graceful and method != "GET"
        async with drain.change() if changes else contextlib.nullcontext():
            return await self._transport.do(
                method,
                path,
                query=query,
                body=body,
                content_type=content_type,
                headers=headers,
                timeout_s=self._timeout_s,
                limiter=self._limiter,
                concurrency=self._concurrency,
                user_agent=self.user_agent,
                retry=retry,
                urgent=self._urgent,
            )

    def lines(
        self, path: str, *, query: Mapping[str, str], idle_timeout_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Send a GET and stream the response line by line; see `Transport.stream`."""
        return self._transport.stream(
            path,
            query=query,
            limiter=self._limiter,
            concurrency=self._concurrency,
            idle_timeout_s=idle_timeout_s,
            user_agent=self.user_agent,
        )


class Resource(Generic[T]):
    """Calls for one kind of object; create it with `Client.resource`.

    For a namespaced kind, every call about one object needs a namespace. A list or a watch without
    a namespace covers all namespaces.
    """

    def __init__(
        self,
        client: Client,
        kind: ResourceKind[T],
        *,
        namespace: str = "",
        field_selector: str = "",
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._field_selector = field_selector
        self.kind = kind

    def within(self, namespace: str) -> Resource[T]:
        """Return a resource that lists and watches only this namespace."""
        return Resource(self._client, self.kind, namespace=namespace)

    def where(self, field_selector: str) -> Resource[T]:
        """Return a resource that lists and watches only matching objects, in all namespaces."""
        return Resource(self._client, self.kind, field_selector=field_selector)

    async def get(self, name: str, *, namespace: str = "") -> T:
        """Read the current state of one object."""
        return await self._call("GET", self._path(name, namespace))

    async def list_page(
        self,
        *,
        namespace: str = "",
        limit: int = PAGE_SIZE,
        continue_: str = "",
        field_selector: str = "",
    ) -> Page[T]:
        """List one page of objects; the first page has the newest state.

        Args:
            namespace: namespace of the objects; empty = all namespaces.
            limit: maximum number of objects in the page.
            continue_: token of the previous page; empty = first page.
            field_selector: field selector as in kubectl.
        """
        fields = field_selector or self._field_selector
        query = {"limit": str(limit), "continue": continue_, "fieldSelector": fields}
        path = self.kind.path(namespace=namespace or self._namespace)
        body = await self._client.raw("GET", path, query=_without_empty(query))
        return decode.decode_page(self.kind, body)

    async def pages(
        self, *, namespace: str = "", field_selector: str = ""
    ) -> AsyncIterator[Page[T]]:
        """Yield all pages of a list in order.

        Raises:
            errors.Gone: the continue token expired between two pages.
        """
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
        """Create an object, with the apiVersion and kind of this resource.

        The namespace defaults to the namespace in the object's metadata.
        """
        content = self._content(obj)
        where = namespace or str((content.get("metadata") or {}).get("namespace") or "")
        self._need_namespace(where)
        path = self.kind.path(namespace=where)
        return await self._call("POST", path, body=content)

    async def replace(self, obj: T, *, subresource: str = "") -> T:
        """Write an object as a whole (PUT), with its resourceVersion as precondition.

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
        """Send a strategic merge patch (built-in kinds only); lists with a merge key are merged."""
        path = self._path(name, namespace, subresource)
        return await self._call("PATCH", path, body=patch, content_type=_STRATEGIC)

    async def patch_merge(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        """Send a JSON merge patch (RFC 7386), which replaces lists; None removes a field."""
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
            name: name of the object.
            namespace: namespace of the object.
            uid: UID as precondition; None = no precondition.
            resource_version: resourceVersion as precondition; None = no precondition.
            grace_period_s: grace period of a Pod in seconds; None = as in the Pod's spec.

        Raises:
            errors.Conflict: the object has another UID or version.
            errors.NotFound: the object does not exist.
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
        """Request the eviction of a Pod, without retries.

        Raises:
            errors.TooManyRequests: a PodDisruptionBudget does not allow the eviction now.
            errors.Conflict: the Pod has another UID.
            errors.NotFound: the Pod does not exist.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        path = self._path(name, namespace, "eviction")
        metrics.writes("pods/eviction").inc()
        # No retries: the caller must get the error of a refused eviction at once.
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
        """Watch changes; the iterator ends when the server ends the watch.

        Args:
            namespace: namespace of the objects; empty = all namespaces.
            resource_version: resourceVersion to start from; empty = send the existing objects, then
                changes.
            timeout_s: seconds after which the server should end the watch.
            send_initial_events: whether the existing objects come first as ADDED events, followed
                by a bookmark with `initial_events_end`.
            field_selector: field selector as in kubectl.
            idle_timeout_s: maximum seconds without a byte; None = `timeout_s` + `IDLE_GRACE_S`.

        Raises:
            errors.ApiError: the server refused the watch, or sent an ERROR event.
            errors.Gone: `resource_version` is too old.
            errors.Unreachable: the connection was cut, was silent for too long, or carried
                undecodable bytes.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timeout_s),
            "resourceVersion": resource_version,
            "fieldSelector": field_selector or self._field_selector,
        }
        query = _without_empty(query)
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


def _without_empty(query: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that are not empty."""
    return {name: value for name, value in query.items() if value}


_MESSAGE_FIELDS = frozenset({"error", "message", "note"})
_USER_KEYED = frozenset({"annotations", "data", "labels"})
_HOST = re.compile(r"[A-Za-z0-9.*_-]{1,253}")
_HAS_MESSAGE = re.compile(rb'"(?:error|hostname|message|note)":"')


def encode(body: Mapping[str, Any]) -> bytes:
    """Encode an object or a patch as JSON; mask secrets in messages, and cut long messages."""
    try:
        sent = _ENCODER.encode(body)
    except UnicodeEncodeError:  # a text has a lone surrogate, which masking replaces
        return _ENCODER.encode(_mask_messages("", body))
    # Fast path: most writes contain no message.
    return _ENCODER.encode(_mask_messages("", body)) if _HAS_MESSAGE.search(sent) else sent


def _mask_messages(name: str, value: Any) -> Any:
    if isinstance(value, str):  # the most frequent case
        if name in _MESSAGE_FIELDS or (name == "hostname" and not _HOST.fullmatch(value)):
            return redact.mask_for_api(value)
        return value
    if isinstance(value, Mapping):
        # Skip maps whose keys users choose: an annotation with the name "note" is not a message.
        return {
            key: item if key in _USER_KEYED else _mask_messages(str(key), item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mask_messages(name, item) for item in value]
    return value
