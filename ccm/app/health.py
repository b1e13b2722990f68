"""The state of the daemon: the checks behind `/healthz`, `/livez` and `/readyz`, and `/explain`.

`/livez` and `/healthz` fail only on what a restart cures: an event loop that is always late,
a controller that ended, a worker or all threads of a synchronous library that never come back,
a lease held without renewing it. `/readyz` also fails while the API server or the cloud cannot
be reached, none of those threads is free, the caches are not complete, or nothing is heard of
the cluster, and says why. A controller for which the provider lacks something, or that refuses
its flags, is reported there and fails nothing: neither a restart nor patience changes that. A
standby is ready when it reaches the API server.

`/explain?kind=node&name=NAME` shows what this daemon knows about one object, for
`kube-ccm explain`. A Service or Machine is named `NAMESPACE/NAME`. The caller needs the right to
`get` the path. Neither the cluster nor the cloud is asked for it, and nothing changes by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from ccm.app.options import Options
from ccm.app.trust import Raw
from ccm.base import clock, redact
from ccm.cloud.blocking import exhausted
from ccm.cloud.calls.handle import Handle
from ccm.kube import errors, workqueue
from ccm.kube.informer import Informer, Informers
from ccm.kube.leader import LeaderElector
from ccm.runtime.account import Answer
from ccm.runtime.controller import Runnable
from ccm.runtime.deletions import DeletionRecord
from ccm.serving.health import PING, WELL, Check, Finding, wrong
from ccm.serving.http import JSON, Handler, Request, Response, text
from ccm.serving.ttl_cache import TTLCache

LATE_BEATS = 5
"""The event loop is ill if so many beats in a row were late: one burst of work is no illness,
and a loop that stands still answers no probe at all."""

STUCK_S = 3600.0
"""A worker that holds one key for so long will not come back: each call it makes ends by
itself, the longest after a quarter of an hour."""

NO_THREAD_S = 300.0
"""If no thread became free for so long, their calls hang, and nothing else ends a thread."""

SILENT_S = 900.0
"""A cache that heard nothing for so long; a watch is opened anew after ten minutes at most."""

LOST_S = 10.0
"""How long the cluster may not be followed before it counts."""

REFUSED_CALLS = 3
"""So many calls in a row that the cloud did not answer are no accident."""

ASKED_S = 2.0
"""How long an answer of the API server about its own health is good for."""

NO_OTHERS: Mapping[str, Raw] = MappingProxyType({})


class Checks:
    """The checks of now.

    Args:
        vitals: what they read.
        api: asks the API server.
        others: ask those of other clusters, by what these are to controllers.
    """

    def __init__(self, vitals: Vitals, api: Raw, others: Mapping[str, Raw] = NO_OTHERS) -> None:
        self._vitals = vitals
        self._asked: TTLCache[str, Finding] = TTLCache(lambda _found: ASKED_S, name="health")
        self._alive = (
            PING,
            Check(name="event-loop", look=self._loop),
            Check(name="workers", look=_workers),
        )
        self._threads_alive = Check(name="cloud-threads", look=partial(_threads, NO_THREAD_S))
        self._able = (
            *(
                Check(
                    name="-".join(filter(None, ("api-server", role))),
                    look=partial(self._asked.get, role, partial(_asked, client)),
                )
                for role, client in {"": api, **others}.items()
            ),
            Check(name="cloud", look=self._cloud),
            Check(name="cloud-threads", look=partial(_threads, 0.0)),
            Check(name="caches", look=self._caches),
            # Callers are refused meanwhile, which does not keep the daemon from its work.
            Check(name="authentication", look=lambda: Finding(detail=vitals.waiting())),
        )

    def healthz(self) -> Sequence[Check]:
        """Behind `/healthz`: the names the reference has, and what `/livez` has."""
        return (*self._elections(), *self._alive, self._threads_alive, *self._controllers())

    def livez(self) -> Sequence[Check]:
        """Behind `/livez`: what a restart cures."""
        return (*self._alive, self._threads_alive, *self._elections(), *self._controllers())

    def readyz(self) -> Sequence[Check]:
        """Behind `/readyz`: whether we can do our work."""
        persistence = self._vitals.persistence
        stored = () if persistence is None else (Check(name="persistence", look=persistence),)
        return (*self._alive, *self._elections(), *self._able, *stored, *self._controllers())

    async def close(self) -> None:
        """Ask nobody any more."""
        await self._asked.close()

    def _elections(self) -> Sequence[Check]:
        if not self._vitals.electors:
            return ()
        return (Check(name="leaderElection", look=self._election),)

    def _controllers(self) -> Sequence[Check]:
        found = self._vitals.controllers
        return [
            # One that goes while the others are looked at is well.
            Check(name=name, look=lambda name=name: found.get(name, WELL))  # type: ignore[misc]
            for name in found
        ]

    def _loop(self) -> Finding:
        late = self._vitals.late_beats
        if late < LATE_BEATS:
            return WELL
        return wrong(f"the event loop was late by more than {LATE_S:g}s {late} times in a row")

    def _election(self) -> Finding:
        return _together(elector.check() or "" for elector in self._vitals.electors.values())

    def _cloud(self) -> Finding:
        vitals = self._vitals
        if vitals.opening:
            return wrong(vitals.opening)
        trouble = vitals.handle.trouble if vitals.handle is not None else None
        if trouble is None or trouble.calls < REFUSED_CALLS:
            return WELL
        return wrong(f"{trouble.calls} calls in a row failed, the last one: {trouble.error}")

    def _caches(self) -> Finding:
        informers = self._vitals.informers
        if informers is None:
            return Finding(detail="none, standing by")
        every = {"": informers, **self._vitals.others}
        return _together(
            self._cache(informer, role) for role, each in every.items() for informer in each.all
        )

    def _cache(self, informer: Informer[Any], role: str) -> str:
        now, what = clock.monotonic(), informer.resource
        if role:
            what = f"{what} of the {role} cluster"
        since = informer.trouble_since
        if since is not None and now - since > LOST_S:
            return f"{what} cannot be followed for {now - since:.0f}s"
        if not informer.has_synced:
            return f"{what} are not complete yet"
        contact = informer.last_contact
        if contact is not None and now - contact > SILENT_S:
            return f"nothing is heard of {what} for {now - contact:.0f}s"
        return ""


async def _asked(api: Raw) -> Finding:
    try:
        await api.raw("GET", "/readyz", retry=False)
    except (errors.Forbidden, errors.NotFound):
        return Finding(detail="reached")  # it answers, and that is all we asked for
    except errors.KubeError as error:
        return wrong(str(error))
    return WELL


def _threads(limit_s: float) -> Finding:
    return _together(
        f"no thread for {kind} became free for {seconds:.0f}s" if seconds >= limit_s else ""
        for kind, seconds in exhausted().items()
    )


def _workers() -> Finding:
    return _together(
        f"{name} works on one key for {seconds:.0f}s" if seconds > STUCK_S else ""
        for name, seconds in workqueue.longest_running().items()
    )


def _together(troubles: Iterable[str]) -> Finding:
    found = [trouble for trouble in troubles if trouble]
    return wrong("; ".join(found)) if found else WELL


BEAT_S = 1.0
LATE_S = 2.0
"""An event loop that comes so much later than it was asked to is late."""


class Vitals:
    """What the daemon knows about itself.

    Attributes:
        opening: why the provider is not open yet; empty once it is.
        handle: the handle to the cloud, once the provider is open.
        informers: the caches, while we lead.
        others: those of other clusters, by what these are to controllers.
        waiting: what the HTTPS server still waits for, in words.
        stopping: whether the process was told to stop.
        late_beats: how often in a row the event loop was late.
        electors: who competes, by the name of the lease.
        at_work: the controllers that run, by name.
        deletions: what the brakes hold back, while we lead.
        controllers: those that were started, or left out, since we lead, and what is to be
            said of them.
        persistence: how storage is; None: none is configured.
    """

    def __init__(self) -> None:
        self.opening = "the provider is not open yet"
        self.handle: Handle | None = None
        self.informers: Informers | None = None
        self.others: Mapping[str, Informers] = {}
        self.waiting: Callable[[], str] = str
        self.stopping: Callable[[], bool] = bool
        self.late_beats = 0
        self.electors: dict[str, LeaderElector] = {}
        self.controllers: dict[str, Finding] = {}
        self.at_work: dict[str, Runnable] = {}
        self.deletions: DeletionRecord | None = None
        self.persistence: Callable[[], Awaitable[Finding]] | None = None

    async def beat(self) -> None:
        """Measure how late the event loop is, until cancelled."""
        while True:
            due = clock.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late = clock.monotonic() - due > LATE_S
            self.late_beats = self.late_beats + 1 if late else 0

    def opened(self, handle: Handle) -> None:
        """The provider is open."""
        self.opening = ""
        self.handle = handle

    def not_opened(self, error: Exception) -> None:
        """An attempt to open the provider failed."""
        self.opening = f"the provider cannot be opened: {error}"

    def stand_by(self) -> None:
        """We lead no more: there are no caches, and no controller runs."""
        self.informers = self.deletions = None
        self.others = {}
        self.controllers.clear()

    @contextmanager
    def running(self, name: str, controller: Runnable) -> Iterator[None]:
        """A controller runs inside the block; it is cancelled, or something is wrong."""
        self.controllers[name] = WELL
        self.at_work[name] = controller
        try:
            yield
        finally:
            del self.at_work[name]
        self.controllers[name] = wrong("it ended unexpectedly")

    def left_out(self, name: str, why: str) -> None:
        """A controller does not run, and that is in order."""
        self.controllers[name] = Finding(detail=f"not running: {why}")


KINDS = ("node", "service", "machine", "machineset", "machinedeployment")

_HELD_OF = {"node": ("Node", "Route"), "service": ("Service",)}
"""Kind of object -> kinds of deletions that have to do with it, as the record names them."""

_USAGE = (
    "say which object: /explain?kind=node&name=NAME, or kind=service, kind=machine, "
    "kind=machineset or kind=machinedeployment with name=NAMESPACE/NAME\n"
)


def page(options: Options, vitals: Vitals) -> Handler:
    """The page that tells about one object."""

    async def answer(request: Request) -> Response:
        kind, name = request.query.get("kind", ""), request.query.get("name", "")
        if kind not in KINDS or not name:
            return text(_USAGE, 400)
        found = about(kind, name, options, vitals)
        return Response(body=msgspec.json.encode(found), content_type=JSON)

    return answer


def about(kind: str, name: str, options: Options, vitals: Vitals) -> Answer:
    """All that is known about an object."""
    electors = vitals.electors.values()
    accounts = [
        msgspec.structs.replace(account, controller=controller)
        for controller, work in vitals.at_work.items()
        if (account := work.account(kind, name)) is not None
    ]
    deletions = vitals.deletions
    return Answer(
        kind=kind,
        name=name,
        provider=options.cloud_provider,
        # Without an election the daemon leads as soon as it has caches.
        leads=any(one.is_leader for one in electors) if electors else vitals.informers is not None,
        lease="; ".join(elector.trouble for elector in electors if elector.trouble),
        opening=redact.words(vitals.opening),
        api="; ".join(_unfollowed(vitals)),
        accounts=accounts,
        absent={
            controller: redact.words(finding.detail)
            for controller, finding in vitals.controllers.items()
            if finding.detail
        },
        held=[
            each
            for of in _HELD_OF.get(kind, ())
            for each in (deletions.held(of) if deletions is not None else ())
            if each.key == name
        ],
    )


def _unfollowed(vitals: Vitals) -> list[str]:
    """What of the cluster is not followed now."""
    if vitals.informers is None:
        return []
    now = clock.monotonic()
    return [
        f"{informer.resource} cannot be followed for {now - since:.0f} s"
        for informer in vitals.informers.all
        if (since := informer.trouble_since) is not None
    ]
