"""Checks the API servers of both clusters, and freezes machines while a server is unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from ccm.base import clock, tasks
from ccm.base.log import Outage
from ccm.controllers.machine.context import MachineContext
from ccm.kube.errors import ApiError, KubeError, NotFound, ServerError, TooManyRequests
from ccm.model.machines import Machine, MachineStatus, OperationState, OperationType, Phase
from ccm.model.patches import StaleObject
from ccm.runtime.writer import PatchStep

PROBE = "kube-ccm-probe"
"""Name of the object that the checks read. It does not exist: a response NotFound proves that the
server is reachable."""


THAW_TEXT = "Machine Health Timeout was reset due to APIServer being unreachable"
"""Status description of a machine whose health timeout restarts (Gardener's MCM)."""

SETTLING_S = 30.0
"""Seconds after the thaw in which nodes may report, before machines are reconciled (Gardener's
MCM)."""

_CHECKS = 5
"""Number of checks during the timeout while a server is unreachable (Gardener's MCM)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeState:
    """Whether machines are frozen, and the start of the current outage.

    Attributes:
        is_frozen: whether machines are frozen.
        away_since: start of the outage, in seconds of a monotonic clock; None = no outage.
    """

    is_frozen: bool = False
    away_since: float | None = None


def next_state(
    before: FreezeState, all_answered: bool, now: float, timeout_s: float
) -> FreezeState:
    """Return the state after a check of the servers.

    Args:
        before: state before the check.
        all_answered: whether all servers answered.
        now: the time, in seconds of the clock of `FreezeState`.
        timeout_s: seconds for which a server may be unreachable before machines are frozen.
    """
    if all_answered:
        return FreezeState()
    since = now if before.away_since is None else before.away_since
    return FreezeState(is_frozen=before.is_frozen or now - since > timeout_s, away_since=since)


def next_check_s(reach: FreezeState, period_s: float, timeout_s: float) -> float:
    """Return the seconds until the next check; fewer during an outage, as all machines wait."""
    return period_s if reach.away_since is None else min(period_s, timeout_s / _CHECKS)


def thawed_status(machine: Machine, now: datetime) -> MachineStatus | None:
    """Return the status Running for a machine in the phase Unknown; None = no change.

    The phase change restarts the machine's health timeout after an outage of an API server.
    """
    if machine.phase is not Phase.UNKNOWN or machine.is_deleting:
        return None
    state, kind = OperationState.SUCCESSFUL, OperationType.HEALTH_CHECK
    return machine.status.entered(Phase.RUNNING, THAW_TEXT, state, kind, now)


class Freezer:
    """Freezes machines during outages of API servers.

    Args:
        context: shared objects of the machine controller.
        thawed: called when machines may be reconciled again.
        period_s: seconds between two checks while all servers answer.
        timeout_s: seconds for which a server may be unreachable before machines are frozen. Also
            the time limit of one check: a server that hangs counts as unreachable.
    """

    def __init__(
        self,
        context: MachineContext,
        thawed: Callable[[], None],
        *,
        period_s: float,
        timeout_s: float,
    ) -> None:
        self._context, self._thawed = context, thawed
        self._period_s, self._timeout_s = period_s, timeout_s
        self._reach = FreezeState()
        self._outage = Outage(
            context.log,
            start_message="API server unreachable, machines frozen",
            end_message="API servers reachable again, machines unfrozen",
        )

    @property
    def is_frozen(self) -> bool:
        """Whether machines are frozen: only deletions are reconciled."""
        return self._reach.is_frozen

    async def run(self) -> None:
        """Check the servers periodically; return at once if there is no target cluster."""
        while self._context.settings.has_target:
            # No check at the start: the caches have just been filled.
            await asyncio.sleep(next_check_s(self._reach, self._period_s, self._timeout_s))
            await self._check()

    async def _check(self) -> None:
        fault = await self._find_outage()
        reach = next_state(self._reach, not fault, clock.monotonic(), self._timeout_s)
        if self.is_frozen and not reach.is_frozen:
            try:
                await self._thaw()
            except KubeError:
                return  # Unreachable again: machines stay frozen.
        self._reach = reach
        if reach.is_frozen:
            self._outage.record_failure(error=fault)
        else:
            self._outage.record_success()

    async def _find_outage(self) -> str:
        """Return why a server is unreachable; empty = the servers of both clusters answer."""
        context = self._context
        for reads, namespace in ((context.machines, context.caches.namespace), (context.nodes, "")):
            look = reads.get(PROBE, namespace=namespace)
            try:
                await tasks.with_timeout(self._timeout_s, look, name="API server check")
            except NotFound:
                continue
            except (KubeError, TimeoutError) as error:
                return str(error)
        return ""

    async def _thaw(self) -> None:
        """Restart the health timeouts, then call `thawed`.

        A machine whose status the API server refuses keeps its timeout, and stops no other.

        Raises:
            KubeError: the API server was unreachable, or too busy, at a write.
        """
        write = self._context.write
        for cached in self._context.caches.machines.store.list():
            obj = write.newest(cached)
            status = thawed_status(obj, clock.now())
            if status is not None and not self._context.codec.is_ignored(obj):
                patch = partial(self._context.codec.new_status, planned_for=obj, wanted=status)
                try:
                    with suppress(StaleObject):  # A newer phase wins.
                        await write.change(obj, PatchStep(patch, "status"))
                except (ServerError, TooManyRequests):
                    raise
                except ApiError as error:
                    self._context.log.warning(
                        "machine status refused, health timeout continues",
                        machine=obj.key,
                        error=str(error),
                    )
        self._thawed()
