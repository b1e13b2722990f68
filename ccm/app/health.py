"""The daemon's state, served at `/healthz`, `/livez`, `/readyz`, `/explain`, `/journal`.

`/livez` and `/healthz` fail only for faults that a restart repairs:

* the event loop was late several times in a row,
* a controller ended,
* a worker hangs, or all threads for one kind of cloud call hang,
* this replica still leads, although its lease was not renewed in time.

`/readyz` also fails for these faults, and while

* the API server or the cloud is unreachable,
* no thread is free for one kind of cloud call,
* a cache is not synced, or its watch fails or is silent,
* no storage instance is available although creations need one.

A controller is skipped if the provider lacks an interface or the controller's flags are invalid. A
skipped controller fails no check, because neither a restart nor waiting helps. A standby can be
ready: it has no caches to check.

`/explain?kind=node&name=NAME` returns the daemon's information about one object, for
`kube-ccm explain`. Kinds other than `node` need `name=NAMESPACE/NAME`. The caller needs permission
for the verb `get` on the path. The request causes no call to the API server or the cloud.

`/journal` returns the journal of cloud resources, for `kube-ccm journal`. A POST changes the
journal; it needs permission for the verb `post`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from ccm.app.delegated_auth import RawClient
from ccm.app.options import Options
from ccm.base import clock, redact
from ccm.base.decoding import DECODE_ERRORS
from ccm.cloud.blocking import exhausted_pools
from ccm.cloud.calls.client import CloudClient
from ccm.kube import errors, workqueue
from ccm.kube.informer import Informer, SharedInformers
from ccm.kube.leader import LeaderElector
from ccm.runtime.controller import Runnable
from ccm.runtime.deletions import DeletionRecord
from ccm.runtime.object_status import DaemonResponse, ExplainResponse
from ccm.serving.health import PASSED, PING, CheckResult, HealthCheck, failed
from ccm.serving.http import JSON, Handler, Request, Response, text
from ccm.serving.ttl_cache import TTLCache

if TYPE_CHECKING:
    from ccm.app.journal import DaemonJournal

MAX_LATE_BEATS = 5
"""Number of consecutive late beats (`BEAT_S`, `LATE_S`) that make the event loop unhealthy.

Fewer late beats, from a burst of work, are tolerated. A blocked loop fails the probe anyway,
because it cannot respond.
"""

HUNG_WORKER_S = 3600.0
"""Seconds on one key after which a worker counts as hanging.

Each call that a worker makes has a timeout of at most 15 minutes.
"""

HUNG_THREADS_S = 300.0
"""Seconds for which a full thread pool may make no progress; a longer stall fails `/livez`.

Only a restart ends a hanging thread.
"""

WATCH_SILENCE_S = 900.0
"""Seconds without a message after which a watch is unhealthy.

The client renews every watch within ten minutes.
"""

WATCH_FAILURE_TOLERANCE_S = 10.0
"""Seconds for which a failing watch is tolerated."""

MAX_FAILED_CALLS = 3
"""Number of consecutive failed cloud calls that make the cloud unhealthy."""

API_RESULT_TTL_S = 2.0
"""Seconds for which the result of the API server's own `/readyz` is cached."""

NO_OTHERS: Mapping[str, RawClient] = MappingProxyType({})


class Checks:
    """The health checks of the daemon.

    Args:
        vitals: state that the checks read.
        api: client for the API server of the daemon's cluster.
        others: clients for the API servers of other clusters, by cluster role.
    """

    def __init__(
        self, vitals: DaemonState, api: RawClient, others: Mapping[str, RawClient] = NO_OTHERS
    ) -> None:
        self._vitals = vitals
        self._api_results: TTLCache[str, CheckResult] = TTLCache(
            lambda _finding: API_RESULT_TTL_S, name="health"
        )
        self._liveness = (
            PING,
            HealthCheck(name="event-loop", probe=self._loop),
            HealthCheck(name="workers", probe=_workers),
        )
        self._threads_alive = HealthCheck(
            name="cloud-threads", probe=partial(_threads, HUNG_THREADS_S)
        )
        self._readiness = (
            *(
                HealthCheck(
                    name="-".join(filter(None, ("api-server", role))),
                    probe=partial(self._api_results.get, role, partial(_check_api_server, client)),
                )
                for role, client in {"": api, **others}.items()
            ),
            HealthCheck(name="cloud", probe=self._cloud),
            HealthCheck(name="cloud-threads", probe=partial(_threads, 0.0)),
            HealthCheck(name="caches", probe=self._caches),
            # Never fails: controllers work even while callers cannot be authenticated.
            HealthCheck(
                name="authentication", probe=lambda: CheckResult(detail=vitals.pending_reason())
            ),
        )

    def healthz(self) -> Sequence[HealthCheck]:
        """Return the checks of `/healthz`: the checks of `/livez`, `leaderElection` first.

        `leaderElection` is the name of the check in the Go cloud-controller-manager.
        """
        return (*self._elections(), *self._liveness, self._threads_alive, *self._controllers())

    def livez(self) -> Sequence[HealthCheck]:
        """Return the checks of `/livez`: faults that a restart repairs."""
        return (*self._liveness, self._threads_alive, *self._elections(), *self._controllers())

    def readyz(self) -> Sequence[HealthCheck]:
        """Return the checks of `/readyz`: whether the daemon can work."""
        persistence = self._vitals.persistence
        stored = (
            () if persistence is None else (HealthCheck(name="persistence", probe=persistence),)
        )
        return (
            *self._liveness,
            *self._elections(),
            *self._readiness,
            *stored,
            *self._controllers(),
        )

    async def close(self) -> None:
        """Cancel unfinished health requests to API servers."""
        await self._api_results.close()

    def _elections(self) -> Sequence[HealthCheck]:
        if not self._vitals.electors:
            return ()
        return (HealthCheck(name="leaderElection", probe=self._election),)

    def _controllers(self) -> Sequence[HealthCheck]:
        findings = self._vitals.controllers
        return [
            # The check of a controller passes if the controller was removed in the meantime.
            HealthCheck(name=name, probe=lambda name=name: findings.get(name, PASSED))  # type: ignore[misc]
            for name in findings
        ]

    def _loop(self) -> CheckResult:
        late = self._vitals.late_beats
        if late < MAX_LATE_BEATS:
            return PASSED
        return failed(f"the event loop was late by more than {LATE_S:g}s {late} times in a row")

    def _election(self) -> CheckResult:
        return _combine(elector.check() or "" for elector in self._vitals.electors.values())

    def _cloud(self) -> CheckResult:
        vitals = self._vitals
        if vitals.not_open_reason:
            return failed(vitals.not_open_reason)
        trouble = vitals.handle.call_failures if vitals.handle is not None else None
        if trouble is None or trouble.calls < MAX_FAILED_CALLS:
            return PASSED
        return failed(f"{trouble.calls} calls in a row failed; last error: {trouble.error}")

    def _caches(self) -> CheckResult:
        informers = self._vitals.informers
        if informers is None:
            return CheckResult(detail="none, standing by")
        by_role = {"": informers, **self._vitals.other_informers}
        return _combine(
            self._cache(informer, role)
            for role, informers_of_role in by_role.items()
            for informer in informers_of_role.all
        )

    def _cache(self, informer: Informer[Any], role: str) -> str:
        now, resource = clock.monotonic(), informer.resource
        if role:
            resource = f"{resource} of the {role} cluster"
        since = informer.outage_since
        if since is not None and now - since > WATCH_FAILURE_TOLERANCE_S:
            return f"watch of {resource} has failed for {now - since:.0f}s"
        if not informer.has_synced:
            return f"cache of {resource} is not synced"
        contact = informer.last_contact
        if contact is not None and now - contact > WATCH_SILENCE_S:
            return f"watch of {resource} has been silent for {now - contact:.0f}s"
        return ""


async def _check_api_server(api: RawClient) -> CheckResult:
    try:
        await api.raw("GET", "/readyz", retry=False)
    except (errors.Forbidden, errors.NotFound):
        return CheckResult(detail="reached")  # any answer proves that the server is reachable
    except errors.KubeError as error:
        return failed(str(error))
    return PASSED


def _threads(limit_s: float) -> CheckResult:
    return _combine(
        f"all threads for {kind} busy for {seconds:.0f}s" if seconds >= limit_s else ""
        for kind, seconds in exhausted_pools().items()
    )


def _workers() -> CheckResult:
    return _combine(
        f"{name} has processed one key for {seconds:.0f}s" if seconds > HUNG_WORKER_S else ""
        for name, seconds in workqueue.longest_running().items()
    )


def _combine(troubles: Iterable[str]) -> CheckResult:
    messages = [trouble for trouble in troubles if trouble]
    return failed("; ".join(messages)) if messages else PASSED


BEAT_S = 1.0
LATE_S = 2.0
"""Seconds between beats of the event loop, and the delay in seconds from which a beat is late."""


class DaemonState:
    """State of the daemon, for health checks and `/explain`.

    Attributes:
        not_open_reason: reason why the provider is not open yet; empty once it is open.
        handle: client for cloud calls; None until the provider is open.
        informers: shared caches of the daemon's cluster; None unless this replica leads.
        other_informers: shared caches of other clusters, by cluster role.
        pending_reason: returns why the HTTPS server lacks the cluster's authentication settings;
            empty if it has them.
        stopping: returns whether the process is stopping.
        late_beats: number of consecutive late beats of the event loop.
        electors: leader electors, by lease name.
        running_controllers: running controllers, by name.
        deletions: record of past and blocked deletions; None unless this replica leads.
        controllers: health of each controller that this leader started or skipped, by name.
        persistence: health check of persistent storage; None if no storage is configured.
        journal: the journal of cloud resources; None with `--journal=off`.
    """

    def __init__(self) -> None:
        self.not_open_reason = "provider not open yet"
        self.handle: CloudClient | None = None
        self.informers: SharedInformers | None = None
        self.other_informers: Mapping[str, SharedInformers] = {}
        self.pending_reason: Callable[[], str] = str
        self.stopping: Callable[[], bool] = bool
        self.late_beats = 0
        self.electors: dict[str, LeaderElector] = {}
        self.controllers: dict[str, CheckResult] = {}
        self.running_controllers: dict[str, Runnable] = {}
        self.deletions: DeletionRecord | None = None
        self.persistence: Callable[[], Awaitable[CheckResult]] | None = None
        self.journal: DaemonJournal | None = None

    async def measure_loop_lag(self) -> None:
        """Count late beats of the event loop, until cancelled."""
        while True:
            due = clock.monotonic() + BEAT_S
            await asyncio.sleep(BEAT_S)
            late = clock.monotonic() - due > LATE_S
            self.late_beats = self.late_beats + 1 if late else 0

    @property
    def leads(self) -> bool:
        """Whether this replica leads; without an election, whether it has caches."""
        electors = self.electors.values()
        if not electors:
            return self.informers is not None
        return any(elector.is_leader for elector in electors)

    def opened(self, handle: CloudClient) -> None:
        """Record that the provider is open."""
        self.not_open_reason = ""
        self.handle = handle

    def not_opened(self, error: Exception) -> None:
        """Record the error of a failed attempt to open the provider."""
        self.not_open_reason = f"the provider cannot be opened: {error}"

    def stand_by(self) -> None:
        """Remove caches and controllers, because this replica no longer leads."""
        self.informers = self.deletions = None
        self.other_informers = {}
        self.controllers.clear()

    @contextmanager
    def running(self, name: str, controller: Runnable) -> Iterator[None]:
        """Report a controller as running inside the block.

        A controller that returns without an exception has failed: it should run until cancelled.
        """
        self.controllers[name] = PASSED
        self.running_controllers[name] = controller
        try:
            yield
        finally:
            del self.running_controllers[name]
        self.controllers[name] = failed("controller ended unexpectedly")

    def skipped(self, name: str, reason: str) -> None:
        """Record that a controller does not run, and why; its health check passes."""
        self.controllers[name] = CheckResult(detail=f"not running: {reason}")


KINDS = (
    "node",
    "service",
    *(
        f"{prefix}{kind}"
        for prefix in ("", "kubermatic")
        for kind in ("machine", "machineset", "machinedeployment")
    ),
)

_DELETION_KINDS = {"node": ("Node", "Route"), "service": ("Service",)}
"""Kind in `/explain` -> kinds whose blocked deletions `/explain` reports."""

_USAGE = (
    "kind and name are required: /explain?kind=node&name=NAME, or kind=service, kind=machine, "
    "kind=machineset or kind=machinedeployment with name=NAMESPACE/NAME; the kinds of Kubermatic's "
    "machine objects begin with kubermatic, as in kind=kubermaticmachine\n"
)


def explain_page(options: Options, vitals: DaemonState) -> Handler:
    """Return the handler of `/explain`."""

    async def answer(request: Request) -> Response:
        kind, name = request.query.get("kind", ""), request.query.get("name", "")
        if kind not in KINDS or not name:
            return text(_USAGE, 400)
        knowledge = explain_object(kind, name, options, vitals)
        return Response(body=msgspec.json.encode(knowledge), content_type=JSON)

    return answer


def explain_object(kind: str, name: str, options: Options, vitals: DaemonState) -> ExplainResponse:
    """Return the `/explain` response about an object, without calls to API server or cloud."""
    electors = vitals.electors.values()
    journal = vitals.journal
    accounts = [
        msgspec.structs.replace(account, controller=controller)
        for controller, work in vitals.running_controllers.items()
        if (account := work.object_status(kind, name)) is not None
    ]
    deletions = vitals.deletions
    return ExplainResponse(
        kind=kind,
        name=name,
        provider=options.cloud_provider,
        leads=vitals.leads,
        lease="; ".join(elector.renewal_problem for elector in electors if elector.renewal_problem),
        opening=redact.mask_text(vitals.not_open_reason),
        api="; ".join(_failing_watches(vitals)),
        accounts=accounts,
        absent={
            controller: redact.mask_text(finding.detail)
            for controller, finding in vitals.controllers.items()
            if finding.detail
        },
        held=[
            deletion
            for deletion_kind in _DELETION_KINDS.get(kind, ())
            for deletion in (deletions.blocked(deletion_kind) if deletions is not None else ())
            if deletion.key == name
        ],
        journal=[] if journal is None else journal.resources_of(kind, name),
    )


def journal_page(vitals: DaemonState) -> Handler:
    """Return the handler of `/journal`."""

    async def answer(request: Request) -> Response:
        response = DaemonResponse(fault="the journal is off; see the flag --journal")
        if vitals.journal is not None:
            # Imported only with a journal.
            from ccm.runtime.journal_report import JournalChange

            if request.method != "POST":
                response = vitals.journal.read()
            else:
                try:
                    change = msgspec.json.decode(await request.read(), type=JournalChange)
                except DECODE_ERRORS as error:
                    return text(f"the body is no change of the journal: {error}\n", 400)
                response = await vitals.journal.change(change)
        opening = redact.mask_text(vitals.not_open_reason)
        response = msgspec.structs.replace(response, leads=vitals.leads, opening=opening)
        return Response(body=msgspec.json.encode(response), content_type=JSON)

    return answer


def _failing_watches(vitals: DaemonState) -> list[str]:
    """Return a message for each failing watch of the daemon's cluster."""
    if vitals.informers is None:
        return []
    now = clock.monotonic()
    return [
        f"watch of {informer.resource} has failed for {now - since:.0f} s"
        for informer in vitals.informers.all
        if (since := informer.outage_since) is not None
    ]
