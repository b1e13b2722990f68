"""Guards against wrong deletions: a guard for many at once, a record, and what is held back.

An API server restored from a backup, one of another cluster behind the same name, or one that
lists nothing makes the owners of load balancers and routes disappear, though they were never
deleted. A few such absences are believed. Many are not: the deletions are held until the owners
are back, or until they are allowed by hand.

The record is kept on the API server: a restart or another leader must not release what is held.
One ConfigMap holds, by daemon and kind of object, when deletions were made and which are held
back. Texts of other daemons in it, of other providers of the same cluster, are left alone.
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
from ccm.base.decoding import UNDECODABLE
from ccm.base.log import Outage
from ccm.kube import errors
from ccm.model import names
from ccm.model.meta import ObjectMeta, ObjectReference, Wire
from ccm.model.objects import ConfigMap
from ccm.model.patches import same_object, same_version
from ccm.model.times import format_micro_time, format_time, parse_time
from ccm.runtime.writer import Recorder

MOST = 3
SHARE = 3
"""More than that many, and more than one of so many, are many."""

QUIET_S = 0.5
"""How long no owner may disappear before those that did are counted: they come in a burst."""

DOUBT_S = 60.0
"""How long a doubt outlives its cause: owners come back page by page."""


def is_mass(doomed: int, settled: int) -> bool:
    """Whether so many of what was settled are many."""
    return doomed > MOST and doomed * SHARE > settled


class MassDeletionGuard:
    """Holds the deletions of one kind while too many owners are missing.

    Args:
        allowed: whether a person said that they may go on.
    """

    def __init__(self, allowed: Callable[[], bool]) -> None:
        self._allowed = allowed
        self._until = -math.inf
        self.in_doubt = False
        """Whether there are, or were lately, so many that people should know."""

    def missing(self, now: float) -> None:
        """An owner is not there any more, and nobody saw it deleted."""
        self._until = max(self._until, now + QUIET_S)

    def back(self, now: float) -> None:
        """An owner is there again, and others may follow."""
        if self.in_doubt:
            self._until = max(self._until, now + DOUBT_S)

    def wait_s(
        self, doomed: int, settled: int, now: float, *, is_many: bool | None = None
    ) -> float:
        """Seconds until the next look at it; 0 = what is doomed may be deleted.

        Args:
            doomed: of what was settled, what has no owner, though nobody saw it deleted.
            settled: all that was settled, this included.
            now: monotonic seconds.
            is_many: whether they are; None: as their numbers say.
        """
        if self._allowed():
            self.in_doubt = False
            return 0.0
        if is_mass(doomed, settled) if is_many is None else is_many:
            self.in_doubt = True
            self._until = now + DOUBT_S
        elif now >= self._until:
            self.in_doubt = False
        return max(0.0, self._until - now)


T = TypeVar("T")

NAME = "kube-ccm-deletions"
"""Of the ConfigMap."""

PAUSE_S = 5.0
"""Shortest time between two writes of what is held back; deletions do not wait for it."""

MOST_NAMED = 200
"""Objects of a kind that are named; the others are only counted: a ConfigMap has a size."""

LOOK_S = 60.0
"""Time between two looks whether a person allows what is held back; none while nothing is."""

_ATTEMPTS = 5
_DELETIONS, _HELD = "deletions", "held"


class Held(Wire, frozen=True, kw_only=True):
    """An object whose deletion is held back; `since` as Kubernetes writes times."""

    name: str
    namespace: str = ""
    uid: str = ""
    reason: str = ""
    since: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class HeldBack(Wire, frozen=True, kw_only=True):
    """All of one kind: how many, and the first of them."""

    count: int
    objects: list[Held]


class ConfigMaps(Protocol):
    """What the record needs of the resource of ConfigMaps."""

    async def get(self, name: str, *, namespace: str) -> ConfigMap:
        """Read one."""
        ...

    async def create(self, obj: ConfigMap, *, namespace: str) -> ConfigMap:
        """Create one."""
        ...

    async def patch_merge(
        self, name: str, patch: Mapping[str, Any], *, namespace: str
    ) -> ConfigMap:
        """JSON merge patch."""
        ...


class GarbledRecord(errors.KubeError):
    """The record says nothing that makes sense; a person has to mend or to delete it."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Request:
    kind: str
    limit: int
    window_s: float
    slot: str = ""
    error: Exception | None = None


_Moments = dict[str, float]
"""Time of a deletion as it is on record -> on the event loop's clock, which never jumps."""


class DeletionRecord:
    """Deletions that were made lately, and those that are held back.

    It is read before the first use, and again after anybody else wrote it or a write of ours
    failed. What this process knows is never forgotten because the record lacks it: the
    ConfigMap was deleted, or the cluster's store restored from a backup.

    Args:
        maps: where to read and write.
        namespace: of the ConfigMap.
        owner: which daemon this is; all its replicas say the same (the name of their Lease).
    """

    def __init__(self, maps: ConfigMaps, *, namespace: str, owner: str) -> None:
        self._maps = maps
        self._namespace = namespace
        self._owner = owner
        self._log = log.logger("deletions")
        self._map: ConfigMap | None = None
        self._is_read = False
        self._looked_at = -math.inf
        self._moments: dict[str, _Moments] = {}
        self._windows: dict[str, float] = {}
        self._held: dict[str, Callable[[], Sequence[Held]]] = {}
        self._asked: list[_Request] = []
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._changed.set()

    @property
    def reference(self) -> ObjectReference:
        """The ConfigMap, for events that have no object of their own."""
        return ObjectReference(
            kind="ConfigMap", api_version="v1", namespace=self._namespace, name=NAME
        )

    @property
    def is_allowed(self) -> bool:
        """Whether a person allows what is held back: by the annotation, on the ConfigMap.

        As it was a moment ago: `run` looks while anything is held. What was allowed once may not
        be any more when the next disaster comes.
        """
        is_fresh = _now() - self._looked_at < 2 * LOOK_S
        return is_fresh and self._map is not None and self._map.allows_deletion

    async def reserve(self, kind: str, *, limit: int, window_s: float) -> str:
        """Take a slot for one deletion, and put it on record; empty: there is none left.

        Those who ask meanwhile share the next write.

        Args:
            kind: of the object, such as `Node`.
            limit: most deletions of that kind in the window.
            window_s: seconds.

        Raises:
            KubeError: the record cannot be read or written, so nothing may be deleted.
        """
        request = _Request(kind=kind, limit=limit, window_s=window_s)
        self._asked.append(request)
        try:
            async with self._lock:
                await asyncio.sleep(0)  # all who ask in this moment come along
                if request in self._asked:
                    await self._answer()
        finally:
            if request in self._asked:
                self._asked.remove(request)
        if request.error is not None:
            raise request.error.with_traceback(None)
        return request.slot

    def give_back(self, kind: str, slot: str) -> None:
        """The deletion for which that was reserved was refused: it counts no more."""
        moments = self._moments.get(kind, {})
        if slot in moments:
            # Kept, so that reading the record does not bring it back.
            moments[slot] = -math.inf
            self.changed()

    def show(self, kind: str, held: Callable[[], Sequence[Held]]) -> None:
        """Keep on record which objects of a kind are held back; asked at each write."""
        self._held[kind] = held
        self.changed()

    def held(self, kind: str) -> Sequence[Held]:
        """What of a kind is held back now."""
        return self._held[kind]() if kind in self._held else ()

    def changed(self) -> None:
        """What is held back is another now: it is written soon, by `run`."""
        self._changed.set()

    async def run(self) -> None:
        """Read the record and keep on it what is held back, until cancelled.

        While anything is, it is read again and again: a person may allow it.
        """
        outage = Outage(
            self._log,
            begins="cannot read or write the record of deletions, nothing that it counts is "
            "deleted",
            ends="the record of deletions can be read and written again",
        )
        while True:
            if not any(held() for held in self._held.values()):
                await self._changed.wait()
            else:
                await tasks.wait_for(self._changed, LOOK_S)
                self._is_read &= _now() - self._looked_at < LOOK_S
            self._changed.clear()
            try:
                async with self._lock:
                    await self._write([])
            except errors.KubeError as error:
                self.changed()
                outage.goes_on(error=str(error))
            else:
                outage.is_over()
            await asyncio.sleep(PAUSE_S)

    async def _answer(self) -> None:
        """Answer all who asked by now."""
        asked, self._asked = self._asked, []
        try:
            await self._write(asked)
        except Exception as error:  # noqa: BLE001 - each of them is told
            for request in asked:
                request.error = error
        except BaseException:
            self._asked[:0] = asked  # our own caller was cancelled; the others were not
            raise

    async def _write(self, asked: Sequence[_Request]) -> None:
        """Grant what can be granted, and write that; without requests, what is held back.

        Raises:
            KubeError: that was not possible; nothing is granted.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            if not self._is_read:
                await self._read()
            moments, slots = self._granted(asked)
            if slots or not asked:
                try:
                    await self._send(self._texts(moments))
                except (errors.Conflict, errors.NotFound):
                    if attempt == _ATTEMPTS:
                        raise
                    continue
                self._remember(moments)
            for request in asked:
                request.slot = slots.get(request, "")
            return

    async def _read(self) -> None:
        try:
            self._map = await self._maps.get(NAME, namespace=self._namespace)
        except errors.NotFound:
            self._map = None
        now, wall = _now(), clock.now()
        for key, text in _own(self._map, self._owner, _DELETIONS).items():
            known = self._moments.setdefault(key, {})
            for moment in _decoded(self._where(key, _DELETIONS), text, list[str]):
                age = wall - _parsed(self._where(key, _DELETIONS), moment)
                # A time in the future was written before a clock was set back: it counts as now.
                known.setdefault(moment, now - max(age.total_seconds(), 0.0))
        self._is_read, self._looked_at = True, _now()

    def _granted(
        self, asked: Sequence[_Request]
    ) -> tuple[dict[str, _Moments], dict[_Request, str]]:
        """What the record will hold, and who gets which slot."""
        now, wall, slots = _now(), clock.now(), dict[_Request, str]()
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
                while (slot := format_micro_time(at)) in known:
                    at += timedelta(microseconds=1)
                slots[request] = slot
                taken[slot] = now
        return moments, slots

    def _texts(self, moments: Mapping[str, _Moments]) -> dict[str, str | None]:
        """What shall be on record, by key; None: nothing."""
        found: dict[str, str | None] = {}
        for kind, known in moments.items():
            found[self._key(kind, _DELETIONS)] = _encoded(sorted(known)) if known else None
        for kind, held in self._held.items():
            every = held()
            listed = HeldBack(count=len(every), objects=list(every[:MOST_NAMED]))
            found[self._key(kind, _HELD)] = _encoded(listed) if every else None
        return found

    async def _send(self, texts: Mapping[str, str | None]) -> None:
        """Write what is not on record yet, if nobody else wrote meanwhile."""
        found = self._map
        written = (found.data or {}) if found is not None else {}
        news = {key: text for key, text in texts.items() if text != written.get(key)}
        if not news:
            return
        # From here on until the answer is there, nobody knows what is on record.
        self._is_read = False
        if found is None:
            new = ConfigMap(
                metadata=ObjectMeta(name=NAME, namespace=self._namespace),
                data={key: text for key, text in news.items() if text is not None},
            )
            self._map = await self._maps.create(new, namespace=self._namespace)
        else:
            patch = {"metadata": same_object(found) | same_version(found), "data": news}
            self._map = await self._maps.patch_merge(NAME, patch, namespace=self._namespace)
        self._is_read, self._looked_at = True, _now()

    def _remember(self, written: Mapping[str, _Moments]) -> None:
        """What was too old is off the record; what was given back meanwhile stays so."""
        for kind, moments in written.items():
            known = self._moments.get(kind, {})
            self._moments[kind] = {text: known.get(text, at) for text, at in moments.items()}

    def _key(self, kind: str, part: str) -> str:
        return f"{self._owner}.{kind}.{part}"

    def _where(self, kind: str, part: str) -> str:
        return f"ConfigMap {self._namespace}/{NAME}, key {self._key(kind, part)}"


def held_back(found: ConfigMap | None, owner: str) -> Mapping[str, HeldBack]:
    """What a daemon holds back according to its record, by kind.

    Raises:
        GarbledRecord: it makes no sense.
    """
    return {
        kind: _decoded(f"key {owner}.{kind}.{_HELD}", text, HeldBack)
        for kind, text in _own(found, owner, _HELD).items()
    }


def _own(found: ConfigMap | None, owner: str, part: str) -> dict[str, str]:
    """Texts of one daemon, by kind."""
    data = (found.data or {}) if found is not None else {}
    start, end = f"{owner}.", f".{part}"
    named = {key.removeprefix(start).removesuffix(end): key for key in data}
    return {
        kind: data[key]
        for kind, key in named.items()
        # A kind has no dot; the name of another daemon may be ours, a dot and something.
        if "." not in kind and key == f"{start}{kind}{end}"
    }


def _decoded(where: str, text: str, form: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=form)
    except UNDECODABLE as error:
        raise _garbled(where, error) from error


def _parsed(where: str, text: str) -> datetime:
    try:
        return parse_time(text)
    except ValueError as error:
        raise _garbled(where, error) from error


def _garbled(where: str, error: Exception) -> GarbledRecord:
    return GarbledRecord(f"{where} makes no sense, mend or delete it: {error}")


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _now() -> float:
    return asyncio.get_running_loop().time()


_held = metrics.gauge(
    "ccm_deletions_held",
    "Deletions that are held back now, by kind of object and reason.",
    ("kind", "reason"),
)

ALLOW = f"annotate ConfigMap {NAME} beside the Lease with {names.ANNOTATION_ALLOW_DELETION}=true"
"""How a person allows what a `mass_guard` holds, for messages about it."""


def mass_guard(record: DeletionRecord | None, *, allow: bool) -> MassDeletionGuard:
    """A guard that a flag opens, or a person by annotating the record."""
    return MassDeletionGuard(lambda: allow or (record is not None and record.is_allowed))


class Holds:
    """Deletions of one kind of object that are held back.

    An event tells when one begins and when its reason changes; the metric and the record
    hold what lasts.

    Args:
        kind: of the objects, such as `Node`.
        events: where the events go.
        record: where `doctor` finds them; None = nowhere.
    """

    def __init__(self, kind: str, events: Recorder, record: DeletionRecord | None = None) -> None:
        self._kind = kind
        self._events = events
        self._record = record
        self._held: dict[str, Held] = {}
        if record is not None:
            record.show(kind, lambda: tuple(self._held.values()))

    def __len__(self) -> int:
        """How many are held back."""
        return len(self._held)

    def hold(self, about: ObjectReference, reason: str, message: str) -> None:
        """The object is not deleted now.

        Args:
            about: the object.
            reason: one word in snake_case, for the metric.
            message: a sentence for people that says what they can do; empty = no event, because one
                about another object says it.
        """
        found = Held(
            name=about.name,
            namespace=about.namespace,
            uid=about.uid,
            reason=reason,
            since=format_time(clock.now()),
        )
        before = self._held.get(found.key)
        if before is not None and (before.uid, before.reason) == (found.uid, reason):
            return
        self._forget(found.key)
        self._held[found.key] = found
        _held.labels(self._kind, reason).inc()
        if message:
            self._events.event(about, names.WARNING, names.REASON_DELETION_HELD, message)
        self._tell()

    def release(self, about: ObjectReference) -> None:
        """The object was deleted, is kept for good, or is gone."""
        if self._forget(Held(name=about.name, namespace=about.namespace).key):
            self._tell()

    def only(self, kept: Collection[str]) -> None:
        """Nothing is held back but the objects of these names, which have no namespace."""
        for name in self._held.keys() - set(kept):
            self.release(ObjectReference(name=name))

    def clear(self) -> None:
        """Nothing is held back any more."""
        for key in list(self._held):
            self._forget(key)
        self._tell()

    def _forget(self, key: str) -> bool:
        held = self._held.pop(key, None)
        if held is not None:
            _held.labels(self._kind, held.reason).dec()
        return held is not None

    def _tell(self) -> None:
        if self._record is not None:
            self._record.changed()
