"""The state of the daemon: the checks behind `/healthz`, `/livez` and `/readyz`, and `/explain`.

`/livez` and `/healthz` fail only for faults that a restart repairs:

* an event loop that is always late,
* a controller that ended,
* a worker that hangs, or all threads of a synchronous library that hang,
* a lease that is held but not renewed.

`/readyz` fails for these too. It also fails while the API server or the cloud is unreachable, no
such thread is free, a cache is not synced, or a watch is silent. A controller that is
skipped, because the provider lacks a feature or its flags are invalid, never fails the check:
neither a restart nor waiting repairs that. A standby is ready when it reaches the API server.

`/explain?kind=node&name=NAME` returns the daemon's knowledge of one object, for
`kube-ccm explain`. A Service or Machine is named `NAMESPACE/NAME`. The caller needs the right to
`get` the path. The page calls neither the API server nor the cloud, and changes nothing.
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
"""Late beats in a row after which the event loop is unhealthy. One burst of work is tolerated, and
a blocked loop answers no probe at all."""

STUCK_S = 3600.0
"""Time on one key after which a worker counts as hanging. Each of its calls has a time-out, of 15
minutes at most."""

NO_THREAD_S = 300.0
"""Time without a free thread after which all their calls hang; only a restart ends a thread."""

SILENT_S = 900.0
"""Silence after which a watch is unhealthy; every watch is renewed within ten minutes."""

LOST_S = 10.0
"""Time for which a failing watch is tolerated."""

REFUSED_CALLS = 3
"""Failed cloud calls in a row after which the cloud is unhealthy."""

ASKED_S = 2.0
"""Time for which the API server's answer about its own health is cached."""

NO_OTHERS: Mapping[str, Raw] = MappingProxyType({})


class Checks:
    """The current health checks.

    Args:
        vitals: state that the checks read.
        api: client of the API server.
        others: clients of the API servers of other clusters, by cluster role.
    """

    def __init__(self, vitals: Vitals, api: Raw, others: Mapping[str, Raw] = NO_OTHERS) -> None:
        self._vitals = vitals
        self._asked: TTLCache[str, Finding] = TTLCache(lambda _finding: ASKED_S, name="health")
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
            # Informational: unauthenticated callers do not keep the daemon from its work.
            Check(name="authentication", look=lambda: Finding(detail=vitals.waiting())),
        )

    def healthz(self) -> Sequence[Check]:
        """Return the checks of `/healthz`: those of `/livez`, with the reference's names first."""
        return (*self._elections(), *self._alive, self._threads_alive, *self._controllers())

    def livez(self) -> Sequence[Check]:
        """Return the checks of `/livez`: faults that a restart repairs."""
        return (*self._alive, self._threads_alive, *self._elections(), *self._controllers())

    def readyz(self) -> Sequence[Check]:
        """Return the checks of `/readyz`: whether the daemon can work."""
        persistence = self._vitals.persistence
        stored = () if persistence is None else (Check(name="persistence", look=persistence),)
        return (*self._alive, *self._elections(), *self._able, *stored, *self._controllers())

    async def close(self) -> None:
        """Cancel running requests to the API servers."""
        await self._asked.close()

    def _elections(self) -> Sequence[Check]:
        if not self._vitals.electors:
            return ()
        return (Check(name="leaderElection", look=self._election),)

    def _controllers(self) -> Sequence[Check]:
        findings = self._vitals.controllers
        return [
            # A controller that was removed since this list was made passes.
            Check(name=name, look=lambda name=name: findings.get(name, WELL))  # type: ignore[misc]
            for name in findings
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
        by_role = {"": informers, **self._vitals.others}
        return _together(
            self._cache(informer, role)
            for role, informers_of_role in by_role.items()
            for informer in informers_of_role.all
        )

    def _cache(self, informer: Informer[Any], role: str) -> str:
        now, resource = clock.monotonic(), informer.resource
        if role:
            resource = f"{resource} of the {role} cluster"
        since = informer.trouble_since
        if since is not None and now - since > LOST_S:
            return f"{resource} cannot be followed for {now - since:.0f}s"
        if not informer.has_synced:
            return f"{resource} are not complete yet"
        contact = informer.last_contact
        if contact is not None and now - contact > SILENT_S:
            return f"nothing is heard of {resource} for {now - contact:.0f}s"
        return ""


async def _asked(api: Raw) -> Finding:
    try:
        await api.raw("GET", "/readyz", retry=False)
    except (errors.Forbidden, errors.NotFound):
        return Finding(detail="reached")  # any answer proves that the server is reachable
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
    messages = [trouble for trouble in troubles if trouble]
    return wrong("; ".join(messages)) if messages else WELL


BEAT_S = 1.0
LATE_S = 2.0
"""Interval of the beats of the event loop, and the delay from which a beat is late."""


class Vitals:
    """State of the daemon, for health checks and `/explain`.

    Attributes:
        opening: reason why the provider is not open yet; empty once it is.
        handle: handle to the cloud, once the provider is open.
        informers: shared caches, while this replica leads.
        others: shared caches of other clusters, by cluster role.
        waiting: returns which settings the HTTPS server still waits for; empty if none.
        stopping: returns whether the process is stopping.
        late_beats: number of late beats of the event loop in a row.
        electors: leader electors, by lease name.
        at_work: running controllers, by name.
        deletions: record of blocked deletions, while this replica leads.
        controllers: health of each controller that was started or skipped as leader, by name.
        persistence: health check of storage; None if none is configured.
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
        """Count late beats of the event loop, until cancelled."""
        while True:
            due = clock.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late = clock.monotonic() - due > LATE_S
            self.late_beats = self.late_beats + 1 if late else 0

    def opened(self, handle: Handle) -> None:
        """Record that the provider is open."""
        self.opening = ""
        self.handle = handle

    def not_opened(self, error: Exception) -> None:
        """Record a failed attempt to open the provider."""
        self.opening = f"the provider cannot be opened: {error}"

    def stand_by(self) -> None:
        """Forget caches and controllers, because this replica no longer leads."""
        self.informers = self.deletions = None
        self.others = {}
        self.controllers.clear()

    @contextmanager
    def running(self, name: str, controller: Runnable) -> Iterator[None]:
        """Report a controller as running inside the block, and as failed if it returns."""
        self.controllers[name] = WELL
        self.at_work[name] = controller
        try:
            yield
        finally:
            del self.at_work[name]
        self.controllers[name] = wrong("it ended unexpectedly")

    def left_out(self, name: str, why: str) -> None:
        """Record a controller that is skipped; this fails no check."""
        self.controllers[name] = Finding(detail=f"not running: {why}")


KINDS = ("node", "service", "machine", "machineset", "machinedeployment")

_HELD_OF = {"node": ("Node", "Route"), "service": ("Service",)}
"""Kind of `/explain` -> related kinds in the deletion record."""

_USAGE = (
    "say which object: /explain?kind=node&name=NAME, or kind=service, kind=machine, "
    "kind=machineset or kind=machinedeployment with name=NAMESPACE/NAME\n"
)


def page(options: Options, vitals: Vitals) -> Handler:
    """Return the handler of `/explain`."""

    async def answer(request: Request) -> Response:
        kind, name = request.query.get("kind", ""), request.query.get("name", "")
        if kind not in KINDS or not name:
            return text(_USAGE, 400)
        knowledge = about(kind, name, options, vitals)
        return Response(body=msgspec.json.encode(knowledge), content_type=JSON)

    return answer


def about(kind: str, name: str, options: Options, vitals: Vitals) -> Answer:
    """Return the daemon's knowledge of an object; makes no calls."""
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
        # Without an election the daemon leads from the moment that it has caches.
        leads=any(candidate.is_leader for candidate in electors)
        if electors
        else vitals.informers is not None,
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
            deletion
            for deletion_kind in _HELD_OF.get(kind, ())
            for deletion in (deletions.held(deletion_kind) if deletions is not None else ())
            if deletion.key == name
        ],
    )


def _unfollowed(vitals: Vitals) -> list[str]:
    """Return a message for each failing watch."""
    if vitals.informers is None:
        return []
    now = clock.monotonic()
    return [
        f"{informer.resource} cannot be followed for {now - since:.0f} s"
        for informer in vitals.informers.all
        if (since := informer.trouble_since) is not None
    ]
