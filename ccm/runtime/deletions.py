"""Protection against wrong deletions: mass-deletion guard, deletion record and blocked deletions.

The owner of a load balancer is a Service; the owner of a route or a load balancer member is a node.
Owners can disappear without having been deleted: the API server was restored from a backup, belongs
to another cluster, or returns empty lists. The controllers delete the objects of a few missing
owners. If many owners are missing, `MassDeletionGuard` blocks the deletions until the owners are
back or the administrator allows the deletions.

The deletion record is a ConfigMap, so that a restart or a new leader does not unblock deletions.
The record lists recent and blocked deletions, by daemon and kind of object. Other daemons, with
other providers, may run in the same cluster; their entries stay untouched.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from ccm.base import clock, log, metrics, tasks
from ccm.base.decoding import DECODE_ERRORS
from ccm.base.log import Outage
from ccm.kube import errors
from ccm.model import names
from ccm.model.meta import ObjectMeta, ObjectReference, Wire
from ccm.model.objects import ConfigMap
from ccm.model.patches import uid_precondition, version_precondition
from ccm.model.times import format_micro_time, format_time, parse_time
from ccm.runtime.writer import Recorder

MASS_MIN = 3
MASS_SHARE = 3
"""Deletions are a mass deletion if the owners of more than `MASS_MIN` objects, and of more than
1/`MASS_SHARE` of all objects of the kind, are missing."""

MISSING_QUIET_S = 0.5
"""Minimum seconds from the last disappearance of an owner to a deletion: owners disappear in
bursts."""

MASS_HOLD_S = 60.0
"""Seconds for which the guard continues to block after too many owners were missing, and after each
return of an owner: owners return page by page."""


def is_mass(missing: int, settled: int) -> bool:
    """Return whether `missing` exceeds both `MASS_MIN` and 1/`MASS_SHARE` of `settled`."""
    return missing > MASS_MIN and missing * MASS_SHARE > settled


class MassDeletionGuard:
    """Guard that blocks the deletions of one kind of object while too many owners are missing.

    Times are monotonic seconds.

    Args:
        allowed: returns whether the administrator allows mass deletions.
    """

    def __init__(self, allowed: Callable[[], bool]) -> None:
        self._allowed = allowed
        self._until = -math.inf
        self.is_blocking = False
        """Whether a mass deletion is blocked, or was blocked in the last `MASS_HOLD_S` seconds."""

    def owner_missing(self, now: float) -> None:
        """Note that an owner is missing and no watch event reported its deletion."""
        self._until = max(self._until, now + MISSING_QUIET_S)

    def owner_returned(self, now: float) -> None:
        """Note that a missing owner is back; others may follow."""
        if self.is_blocking:
            self._until = max(self._until, now + MASS_HOLD_S)

    def wait_s(
        self, missing: int, settled: int, now: float, *, is_many: bool | None = None
    ) -> float:
        """Return the seconds until the next check; 0 = the objects may be deleted.

        Args:
            missing: number of objects whose owner is missing without a deletion event.
            settled: number of all existing objects of the kind, including those whose owner is
                missing.
            now: current time.
            is_many: whether this is a mass deletion; None: as `is_mass` decides.
        """
        if self._allowed():
            self.is_blocking = False
            return 0.0
        if is_mass(missing, settled) if is_many is None else is_many:
            self.is_blocking = True
            self._until = now + MASS_HOLD_S
        elif now >= self._until:
            self.is_blocking = False
        return max(0.0, self._until - now)


T = TypeVar("T")

CONFIG_MAP_NAME = "kube-ccm-deletions"
"""Name of the ConfigMap that is the deletion record."""

WRITE_INTERVAL_S = 5.0
"""Minimum seconds between two writes of blocked deletions, since hundreds may be blocked within a
short time; also the retry delay of a failed write. Slots of deletions (see
`DeletionRecord.reserve`) are written at once."""

MAX_LISTED = 200
"""Limit of listed blocked deletions per kind, because of the size limit of a ConfigMap. Further
blocked deletions are only counted."""

READ_INTERVAL_S = 60.0
"""Seconds between two reads of the ConfigMap's annotation while a deletion is blocked: the
ConfigMap is not watched."""

_ATTEMPTS = 5
"""Maximum attempts of a write that conflicts: another replica may write at the same time."""

_DELETIONS, _HELD = "deletions", "held"


class BlockedDeletion(Wire, frozen=True, kw_only=True):
    """Object whose deletion is blocked.

    Attributes:
        reason: see `DeletionBlocks.block`.
        since: time of the block, in the format of Kubernetes.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    reason: str = ""
    since: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class BlockedDeletions(Wire, frozen=True, kw_only=True):
    """Blocked deletions of one kind of object.

    Attributes:
        count: number of all blocked deletions.
        objects: the first `MAX_LISTED` of them.
    """

    count: int
    objects: list[BlockedDeletion]


class ConfigMapClient(Protocol):
    """Client for the deletion record's ConfigMap; implemented by `Resource`."""

    async def get(self, name: str, *, namespace: str) -> ConfigMap:
        """Read a ConfigMap."""
        ...

    async def create(self, obj: ConfigMap, *, namespace: str) -> ConfigMap:
        """Create a ConfigMap."""
        ...

    async def patch_merge(
        self, name: str, patch: Mapping[str, Any], *, namespace: str
    ) -> ConfigMap:
        """Send a JSON merge patch."""
        ...


class MalformedRecord(errors.KubeError):
    """The deletion record cannot be decoded; an administrator has to repair or delete it."""


@dataclass(slots=True, eq=False, kw_only=True)
class _SlotRequest:
    kind: str
    limit: int
    window_s: float
    slot: str = ""
    error: Exception | None = None


_Moments = dict[str, float]
"""Slot (text of the deletion's time in the record) -> the deletion's time on the event loop's
clock, which never jumps; minus infinity for a released slot."""


class DeletionRecord:
    """Record of recent and blocked deletions, stored in a ConfigMap.

    The ConfigMap is read before its first use, after another client wrote it, after a failed write,
    and periodically while a deletion is blocked. This process also keeps its own deletions in
    memory, in case the ConfigMap is deleted or etcd is restored from a backup.

    Args:
        maps: client for ConfigMaps.
        namespace: namespace of the ConfigMap.
        owner: name of the daemon's Lease, which all its replicas share.
    """

    def __init__(self, maps: ConfigMapClient, *, namespace: str, owner: str) -> None:
        self._maps = maps
        self._namespace = namespace
        self._owner = owner
        self._log = log.logger("deletions")
        self._map: ConfigMap | None = None
        self._is_read = False
        self._read_at = -math.inf
        self._moments: dict[str, _Moments] = {}
        self._windows: dict[str, float] = {}
        self._blocked: dict[str, Callable[[], Sequence[BlockedDeletion]]] = {}
        self._requests: list[_SlotRequest] = []
        self._lock = asyncio.Lock()
        """Lock of reads and writes of the ConfigMap: concurrent writes would conflict, and one
        write serves all requests that wait for the lock."""
        self._changed = asyncio.Event()
        self._changed.set()

    @property
    def reference(self) -> ObjectReference:
        """Reference to the ConfigMap, for events that belong to no other object."""
        return ObjectReference(
            kind="ConfigMap", api_version="v1", namespace=self._namespace, name=CONFIG_MAP_NAME
        )

    @property
    def is_allowed(self) -> bool:
        """Whether the annotation on the ConfigMap allows the blocked deletions.

        The value is from the last read or write; `run` reads the ConfigMap while deletions are
        blocked. A value older than 2 * `READ_INTERVAL_S` counts as False: an earlier permission
        must not apply to the next outage.
        """
        is_fresh = _now() - self._read_at < 2 * READ_INTERVAL_S
        return is_fresh and self._map is not None and self._map.allows_deletion

    async def reserve(self, kind: str, *, limit: int, window_s: float) -> str:
        """Reserve a slot for one deletion and write it to the ConfigMap.

        Concurrent callers share the next write.

        Args:
            kind: kind of the object to delete, such as `Node`.
            limit: maximum deletions of this kind within the window.
            window_s: length of the window in seconds.

        Returns:
            The slot; empty if the limit is reached.

        Raises:
            KubeError: the ConfigMap cannot be read or written, so the deletion is forbidden.
        """
        request = _SlotRequest(kind=kind, limit=limit, window_s=window_s)
        self._requests.append(request)
        try:
            async with self._lock:
                await asyncio.sleep(0)  # batch the callers of this moment
                if request in self._requests:
                    await self._serve_requests()
        finally:
            if request in self._requests:
                self._requests.remove(request)
        if request.error is not None:
            raise request.error.with_traceback(None)
        return request.slot

    def release(self, kind: str, slot: str) -> None:
        """Release the slot of a deletion that did not take place."""
        moments = self._moments.get(kind, {})
        if slot in moments:
            # The slot stays in memory as expired, so that a read of the ConfigMap does not
            # restore it.
            moments[slot] = -math.inf
            self.changed()

    def register_blocked(self, kind: str, blocked: Callable[[], Sequence[BlockedDeletion]]) -> None:
        """Register a kind; at each write, `blocked` returns the blocked deletions of the kind."""
        self._blocked[kind] = blocked
        self.changed()

    def blocked(self, kind: str) -> Sequence[BlockedDeletion]:
        """Return the blocked deletions of a kind."""
        return self._blocked[kind]() if kind in self._blocked else ()

    def changed(self) -> None:
        """Note that the blocked deletions changed; `run` writes them."""
        self._changed.set()

    async def run(self) -> None:
        """Write changed blocked deletions to the ConfigMap, until cancelled.

        While a deletion is blocked, read the ConfigMap periodically: its annotation may allow the
        deletion.
        """
        outage = Outage(
            self._log,
            start_message="deletion record unavailable, guarded deletions blocked",
            end_message="deletion record available again",
        )
        while True:
            if not any(held() for held in self._blocked.values()):
                await self._changed.wait()
            else:
                await tasks.wait_for(self._changed, READ_INTERVAL_S)
                # The annotation may have changed, so read again after `READ_INTERVAL_S`.
                self._is_read &= _now() - self._read_at < READ_INTERVAL_S
            self._changed.clear()
            try:
                async with self._lock:
                    await self._write([])
            except errors.KubeError as error:
                self.changed()
                outage.record_failure(error=str(error))
            else:
                outage.record_success()
            await asyncio.sleep(WRITE_INTERVAL_S)

    async def _serve_requests(self) -> None:
        """Serve all pending requests with one write."""
        asked, self._requests = self._requests, []
        try:
            await self._write(asked)
        except Exception as error:  # noqa: BLE001 - each caller raises it
            for request in asked:
                request.error = error
        except BaseException:
            self._requests[:0] = asked  # only this caller was cancelled
            raise

    async def _write(self, asked: Sequence[_SlotRequest]) -> None:
        """Grant the requested slots, and write recent and blocked deletions to the ConfigMap.

        If requests exist but no slot is left, nothing is written.

        Raises:
            KubeError: the read or the write failed; no slot is granted.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            if not self._is_read:
                await self._read()
            moments, slots = self._granted(asked)
            if slots or not asked:
                try:
                    await self._send(self._texts(moments))
                except (errors.Conflict, errors.NotFound):
                    # Another client changed or deleted the ConfigMap: read it, and plan again.
                    if attempt == _ATTEMPTS:
                        raise
                    continue
                self._remember(moments)
            for request in asked:
                request.slot = slots.get(request, "")
            return

    async def _read(self) -> None:
        try:
            self._map = await self._maps.get(CONFIG_MAP_NAME, namespace=self._namespace)
        except errors.NotFound:
            self._map = None
        now, wall = _now(), clock.now()
        for key, text in _own_values(self._map, self._owner, _DELETIONS).items():
            known = self._moments.setdefault(key, {})
            for moment in _decoded(self._where(key, _DELETIONS), text, list[str]):
                age = wall - _parsed(self._where(key, _DELETIONS), moment)
                # A time in the future was written before a clock was set back. It counts as now,
                # so that the slot expires at most one window later.
                known.setdefault(moment, now - max(age.total_seconds(), 0.0))
        self._is_read, self._read_at = True, _now()

    def _granted(
        self, asked: Sequence[_SlotRequest]
    ) -> tuple[dict[str, _Moments], dict[_SlotRequest, str]]:
        """Grant slots up to the limits.

        Returns:
            The unexpired deletions by kind, including the new slots; and the slot of each granted
            request.
        """
        now, wall, slots = _now(), clock.now(), dict[_SlotRequest, str]()
        self._windows |= {request.kind: request.window_s for request in asked}
        moments = {
            kind: {
                text: moment
                for text, moment in self._moments.get(kind, {}).items()
                if moment > now - window_s
            }
            for kind, window_s in self._windows.items()
        }
        for request in asked:
            taken = moments[request.kind]
            if len(taken) < request.limit:
                known, at = taken | self._moments.get(request.kind, {}), wall
                # A slot is the text of a time. Concurrent slots differ by a microsecond.
                while (slot := format_micro_time(at)) in known:
                    at += timedelta(microseconds=1)
                slots[request] = slot
                taken[slot] = now
        return moments, slots

    def _texts(self, moments: Mapping[str, _Moments]) -> dict[str, str | None]:
        """Return the wanted data of the ConfigMap: key -> value; None = remove the key."""
        texts: dict[str, str | None] = {}
        for kind, known in moments.items():
            texts[self._key(kind, _DELETIONS)] = _encoded(sorted(known)) if known else None
        for kind, held in self._blocked.items():
            objects = held()
            listed = BlockedDeletions(count=len(objects), objects=list(objects[:MAX_LISTED]))
            texts[self._key(kind, _HELD)] = _encoded(listed) if objects else None
        return texts

    async def _send(self, texts: Mapping[str, str | None]) -> None:
        """Write the values that differ from those in the ConfigMap.

        Raises:
            Conflict, NotFound: another client changed or deleted the ConfigMap meanwhile.
            KubeError: the write failed for another reason.
        """
        current = self._map
        written = (current.data or {}) if current is not None else {}
        changed = {key: text for key, text in texts.items() if text != written.get(key)}
        if not changed:
            return
        # Until the response arrives, the content of the ConfigMap is unknown.
        self._is_read = False
        if current is None:
            new = ConfigMap(
                metadata=ObjectMeta(name=CONFIG_MAP_NAME, namespace=self._namespace),
                data={key: text for key, text in changed.items() if text is not None},
            )
            self._map = await self._maps.create(new, namespace=self._namespace)
        else:
            patch = {
                "metadata": uid_precondition(current) | version_precondition(current),
                "data": changed,
            }
            self._map = await self._maps.patch_merge(
                CONFIG_MAP_NAME, patch, namespace=self._namespace
            )
        self._is_read, self._read_at = True, _now()

    def _remember(self, written: Mapping[str, _Moments]) -> None:
        """Keep only the written deletions; slots released during the write stay released."""
        for kind, moments in written.items():
            known = self._moments.get(kind, {})
            self._moments[kind] = {text: known.get(text, at) for text, at in moments.items()}

    def _key(self, kind: str, part: str) -> str:
        return f"{self._owner}.{kind}.{part}"

    def _where(self, kind: str, part: str) -> str:
        return f"ConfigMap {self._namespace}/{CONFIG_MAP_NAME}, key {self._key(kind, part)}"


def blocked_deletions(config_map: ConfigMap | None, owner: str) -> Mapping[str, BlockedDeletions]:
    """Return a daemon's blocked deletions by kind of object.

    Args:
        config_map: the deletion record; None = there is none.
        owner: name of the daemon's Lease.

    Raises:
        MalformedRecord: the record cannot be decoded.
    """
    return {
        kind: _decoded(f"key {owner}.{kind}.{_HELD}", text, BlockedDeletions)
        for kind, text in _own_values(config_map, owner, _HELD).items()
    }


def _own_values(config_map: ConfigMap | None, owner: str, part: str) -> dict[str, str]:
    """Return the values of one daemon and one part (`_DELETIONS` or `_HELD`), by kind."""
    data = (config_map.data or {}) if config_map is not None else {}
    start, end = f"{owner}.", f".{part}"
    named = {key.removeprefix(start).removesuffix(end): key for key in data}
    return {
        kind: data[key]
        for kind, key in named.items()
        # A kind has no dot. Another daemon's name may begin with `owner` and a dot.
        if "." not in kind and key == f"{start}{kind}{end}"
    }


def _decoded(where: str, text: str, form: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=form)
    except DECODE_ERRORS as error:
        raise _malformed(where, error) from error


def _parsed(where: str, text: str) -> datetime:
    try:
        return parse_time(text)
    except ValueError as error:
        raise _malformed(where, error) from error


def _malformed(where: str, error: Exception) -> MalformedRecord:
    return MalformedRecord(f"{where}: cannot be decoded: {error}; repair or delete it")


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _now() -> float:
    return asyncio.get_running_loop().time()


_blocked_gauge = metrics.gauge(
    "ccm_deletions_held", "Blocked deletions, by kind of object and reason.", ("kind", "reason")
)

ALLOW_HINT = (
    f"annotate ConfigMap {CONFIG_MAP_NAME} in the Lease's namespace with "
    f"{names.ANNOTATION_ALLOW_DELETION}=true"
)
"""Advice for messages: how to allow deletions that a `mass_guard` blocks."""


def mass_guard(record: DeletionRecord | None, *, allow: bool) -> MassDeletionGuard:
    """Create a guard; `allow` or the annotation on the record's ConfigMap allows mass deletions."""
    return MassDeletionGuard(lambda: allow or (record is not None and record.is_allowed))


class DeletionBlocks:
    """Blocked deletions of one kind of object.

    An event is recorded when a deletion is blocked and when the reason changes. The metric and the
    deletion record show the deletions that are blocked now.

    Args:
        kind: kind of the objects, such as `Node`.
        events: event recorder.
        record: deletion record, which `doctor` reads; None = blocked deletions are not recorded.
    """

    def __init__(self, kind: str, events: Recorder, record: DeletionRecord | None = None) -> None:
        self._kind = kind
        self._events = events
        self._record = record
        self._blocked: dict[str, BlockedDeletion] = {}
        if record is not None:
            record.register_blocked(kind, lambda: tuple(self._blocked.values()))

    def __len__(self) -> int:
        """Return the number of blocked deletions."""
        return len(self._blocked)

    def block(self, reference: ObjectReference, reason: str, message: str) -> None:
        """Record that the deletion of an object is blocked.

        Args:
            reference: the object.
            reason: reason in snake_case, for the metric and the deletion record.
            message: event message that says what the administrator can do; empty = no event,
                because an event about another object has the message.
        """
        entry = BlockedDeletion(
            name=reference.name,
            namespace=reference.namespace,
            uid=reference.uid,
            reason=reason,
            since=format_time(clock.now()),
        )
        before = self._blocked.get(entry.key)
        if before is not None and (before.uid, before.reason) == (entry.uid, reason):
            return
        self._forget(entry.key)
        self._blocked[entry.key] = entry
        _blocked_gauge.labels(self._kind, reason).inc()
        if message:
            self._events.event(reference, names.WARNING, names.REASON_DELETION_HELD, message)
        self._notify_record()

    def unblock(self, reference: ObjectReference) -> None:
        """Record that the deletion of an object is no longer blocked: it is done, or not needed."""
        if self._forget(BlockedDeletion(name=reference.name, namespace=reference.namespace).key):
            self._notify_record()

    def keep_only(self, kept: Collection[str]) -> None:
        """Unblock all objects except those named in `kept`; for cluster-scoped kinds."""
        for name in self._blocked.keys() - set(kept):
            self.unblock(ObjectReference(name=name))

    def clear(self) -> None:
        """Unblock all objects."""
        for key in list(self._blocked):
            self._forget(key)
        self._notify_record()

    def _forget(self, key: str) -> bool:
        held = self._blocked.pop(key, None)
        if held is not None:
            _blocked_gauge.labels(self._kind, held.reason).dec()
        return held is not None

    def _notify_record(self) -> None:
        if self._record is not None:
            self._record.changed()
