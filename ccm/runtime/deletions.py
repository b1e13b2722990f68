"""What the brakes on deletions remember, kept on the API server: a restart or another leader
must not release them.

One ConfigMap holds, by daemon and kind of object, when deletions were made and which are held
back. Texts of other daemons in it, of other providers of the same cluster, are left alone.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

import msgspec

from ccm.base import clock, log, waiting
from ccm.base.decoding import UNDECODABLE
from ccm.base.outage import Outage
from ccm.kube import errors
from ccm.model.configmap import ConfigMap
from ccm.model.meta import ObjectMeta, ObjectReference, Wire
from ccm.model.patches import same_object, same_version
from ccm.model.times import format_micro_time, parse_time

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
                await waiting.wait_for(self._changed, LOOK_S)
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
                slots[request] = slot = _unused(wall, taken | self._moments.get(request.kind, {}))
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


def _unused(wall: datetime, taken: Mapping[str, float]) -> str:
    """This moment as text; a moment later where a deletion has that text already."""
    while (text := format_micro_time(wall)) in taken:
        wall += timedelta(microseconds=1)
    return text


def _now() -> float:
    return asyncio.get_running_loop().time()
