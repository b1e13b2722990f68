"""Check of the deletions that a start of the daemon would cause.

The daemon's controllers compute the forecast in virtual time (see `ccm.planning`). The forecast
therefore runs in its own thread, with its own clients of the API server and the cloud.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from ccm.app.options import Options
from ccm.base.tasks import leaf_exceptions, spawn
from ccm.cloud.errors import CloudError
from ccm.doctor import ExaminationError, provider
from ccm.doctor.case import Case, CheckFinding, count, ok, skip, some, warn
from ccm.kube.errors import KubeError, Unauthorized, Unreachable
from ccm.planning import changes
from ccm.planning.changes import Forecast, PlannedChange
from ccm.planning.forecast import forecast
from ccm.planning.timeloop import FastForwardLoop

T = TypeVar("T")

TIME_SHARE = 0.8
"""Fraction of a check's time limit that the forecast may use.

With many nodes, a forecast takes long. When the time is over, the check is skipped instead of
failed.
"""


async def deletions_at_start(case: Case) -> CheckFinding:
    """Report the nodes, load balancers, routes and VMs that the daemon would delete at a start."""
    options, environ = case.options, case.environ
    separate_case = Case(
        options=options, environ=environ, limit_s=case.limit_s, service_account=case.service_account
    )
    unknown = "the deletions at a start are unknown"
    try:
        async with asyncio.timeout(TIME_SHARE * case.limit_s):
            outcome = await run_in_forecast_thread(
                lambda: forecast_of(options, environ, case=separate_case)
            )
    except TimeoutError:
        return skip(
            f"{unknown}: timed out; run `kube-ccm plan` with the same flags (no time limit)"
        )
    except ExaminationError as error:
        return skip(f"{unknown}: {error}", cause=error.check)
    held = f", and block {count(len(outcome.blocked), 'deletion')}" if outcome.blocked else ""
    going = list(dict.fromkeys(map(_shown, outcome.deletions)))
    if going:
        return warn(
            f"starting the daemon would delete {some(going)}{held}",
            "to see all changes, run `kube-ccm plan` with the same flags; start the daemon only if "
            "these deletions are intended",
        )
    if outcome.failures:
        return skip(f"{unknown}: {outcome.failures[0]}")
    return ok(f"starting the daemon would delete nothing{held}")


def _shown(change: PlannedChange) -> str:
    match change.what:
        case changes.BALANCER:
            return f"the load balancer of {change.subject}"
        case changes.ROUTE:
            return f"the route {change.subject.name}"
        case changes.VM:
            return f"the VM of {change.subject}"
    return str(change.subject)


async def forecast_of(
    options: Options, environ: Mapping[str, str], *, wait: bool = False, case: Case | None = None
) -> Forecast:
    """Return the forecast for a start with these flags; see `ccm.planning.forecast.forecast`.

    Args:
        options: the daemon's flags.
        environ: environment variables, for the kubeconfig and exec plugins.
        wait: whether to query the cloud a second time about a missing instance, after a wait.
        case: case in which the clients are opened; None = a new case.

    Raises:
        ExaminationError: the forecast cannot be computed.
    """
    case = case or Case(options=options, environ=environ)
    case.reads_only = True
    outcome: Forecast | None = None
    try:
        async with case.exit_stack:
            await provider.open_provider(case)
            outcome = await forecast(options, case.client, case.cloud, wait=wait)
    except ExaminationError:
        raise
    except TimeoutError as error:
        raise ExaminationError("opening the provider timed out", check="cloud-config") from error
    except Exception as error:
        if outcome is not None:
            return outcome  # another check reports a provider that fails to close
        cause = next(leaf_exceptions(error))
        if not isinstance(cause, KubeError | CloudError):
            raise
        # Name the check that reports the same error.
        check = "identity" if isinstance(cause, Unauthorized) else ""
        check = "server" if isinstance(cause, Unreachable) else check
        raise ExaminationError(f"{type(cause).__name__}: {cause}", check=check) from error
    return outcome


async def run_in_forecast_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a `FastForwardLoop` in a thread of its own, and return the result.

    Cancelling this call cancels the coroutine. The thread is a daemon thread, so it does not delay
    the exit of the process.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

    async def main() -> T:
        task = spawn(work(), name="start-forecast")
        running.append((asyncio.get_running_loop(), task))
        return await task

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=FastForwardLoop) as runner:
                result = runner.run(main())
        except BaseException as error:  # noqa: BLE001 - the caller's await raises it
            outcome.set_exception(error)
        else:
            # Only after the loop is closed, because an open `FastForwardLoop` replaces the clock.
            outcome.set_result(result)

    threading.Thread(target=run, name="start-forecast", daemon=True).start()
    try:
        return await asyncio.wrap_future(outcome)
    finally:
        for loop, task in running:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(task.cancel)
