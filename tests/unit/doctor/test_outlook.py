"""What the doctor says first: what starting the daemon would delete."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from ccm.app import options
from ccm.base import clock
from ccm.doctor import Refused, outlook, provider
from ccm.doctor.case import Case, Finding, Verdict
from ccm.doctor.examination import CHECKS
from ccm.kube import errors
from ccm.planning.changes import BALANCER, ROUTE, Action, Change, Forecast, Subject, Told
from ccm.planning.timeloop import hurrying

GONE = [
    Change(subject=Subject("Node", "", "n1"), action=Action.DELETE, what="Node", after_s=5),
    Change(
        subject=Subject("Route", "", "10.0.1.0/24"), action=Action.DELETE, what=ROUTE, old="to n1"
    ),
    Change(subject=Subject("Service", "a", "b"), action=Action.DELETE, what=BALANCER),
]
FIELD = Change(
    subject=Subject("Node", "", "n2"), action=Action.DELETE, what="spec.taints", old="a:NoSchedule"
)
HELD = [Told(subject=Subject("Node", "", "n3"), reason="DeletionHeld", message="why")]


@pytest.fixture
def case() -> Case:
    return Case(options=options.parse(["--cloud-provider=sim"]), environ={}, limit_s=1.0)


async def found(case: Case, monkeypatch: pytest.MonkeyPatch, answer: Any) -> Finding:
    async def forecast_of(*_: Any, **__: Any) -> Forecast:
        if callable(answer):
            await answer()
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(outlook, "forecast_of", forecast_of)
    return await outlook.start(case)


def test_it_is_the_first_that_is_looked_at() -> None:
    assert CHECKS[0].make is outlook.start


DELETES = "starting the daemon would delete"


@pytest.mark.parametrize(
    ("answer", "verdict", "text", "cause"),
    [
        (
            Forecast(changes=[*GONE, FIELD], held=HELD),
            Verdict.WARN,
            f"{DELETES} Node n1, the route 10.0.1.0/24, the load balancer of Service a/b, and hold",
            "",
        ),
        (Forecast(changes=[FIELD]), Verdict.OK, f"{DELETES} nothing", ""),
        (Refused("no file", check="kubeconfig"), Verdict.SKIP, f"what {DELETES}", "kubeconfig"),
        (Forecast(failures=["list_routes: down"]), Verdict.SKIP, f"what {DELETES}", ""),
    ],
    ids=["deletions", "nothing", "no way", "no answer"],
)
async def test_the_finding(
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,
    verdict: Verdict,
    text: str,
    cause: str,
) -> None:
    told = await found(case, monkeypatch, answer)

    assert (told.verdict, told.cause) == (verdict, cause)
    assert told.found.startswith(text)


async def test_one_that_takes_too_long_is_no_failure(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    case.limit_s = 0.1
    told = await found(case, monkeypatch, hang)

    assert told.verdict is Verdict.SKIP
    assert "takes the time it needs" in told.found
    assert await asyncio.to_thread(ended.wait, 5.0)


@pytest.mark.parametrize(
    ("error", "check", "text"),
    [
        (errors.Unreachable("no answer", kind="refused"), "server", "Unreachable: "),
        (
            errors.Unauthorized(status=401, reason="Unauthorized", message="who?"),
            "identity",
            "Unauthorized: ",
        ),
        (errors.Forbidden(status=403, reason="Forbidden", message="no"), "", "Forbidden: "),
        (TimeoutError(), "cloud-config", "not opened in time"),
    ],
    ids=["server", "identity", "rights", "provider"],
)
async def test_an_error_of_reading_is_left_to_the_check_that_tells_of_it(
    case: Case, monkeypatch: pytest.MonkeyPatch, error: Exception, check: str, text: str
) -> None:
    async def opened(_: Case) -> None:
        raise error

    monkeypatch.setattr(provider, "opened", opened)
    with pytest.raises(Refused, match=text) as refused:
        await outlook.forecast_of(case.options, {})

    assert refused.value.check == check


async def test_its_way_to_the_api_server_only_reads(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    async def opened(case: Case) -> None:
        seen.append(case.reads_only)
        raise Refused("")

    monkeypatch.setattr(provider, "opened", opened)
    with pytest.raises(Refused):
        await outlook.forecast_of(case.options, {}, case=case)

    assert seen == [True]


async def test_a_provider_that_does_not_close_well_takes_no_plan_away(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened(case: Case) -> None:
        case.client = case.cloud = None  # type: ignore[assignment]
        case.exits.callback(lambda: 1 / 0)

    async def forecast(*_: Any, **__: Any) -> Forecast:
        return Forecast(held=HELD)

    monkeypatch.setattr(provider, "opened", opened)
    monkeypatch.setattr(outlook, "forecast", forecast)

    assert (await outlook.forecast_of(case.options, {})).held == HELD


async def test_a_defect_of_ours_is_not_hidden(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    async def opened(_: Case) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(provider, "opened", opened)
    with pytest.raises(ZeroDivisionError):
        await outlook.forecast_of(case.options, {})


async def test_work_apart_skips_waiting_and_each_sees_its_own_time() -> None:
    """The clock of the one before is put back before the next begins."""

    async def work() -> tuple[int, str]:
        began = clock.monotonic()
        with hurrying():
            await asyncio.sleep(3600)
        return round(clock.monotonic() - began), threading.current_thread().name

    began = time.monotonic()
    assert {await outlook.apart(work) for _ in range(40)} == {(3600, "outlook")}
    assert time.monotonic() - began < 3600
