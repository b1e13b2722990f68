"""What the doctor says first: what starting the daemon would delete."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.app import options
from ccm.doctor import Refused, outlook, provider
from ccm.doctor.case import Case, Finding, Verdict
from ccm.doctor.examination import CHECKS
from ccm.kube import errors
from ccm.planning.changes import BALANCER, ROUTE, Action, Change, Forecast, Subject, Told

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
