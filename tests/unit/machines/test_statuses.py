"""What of a status is new."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ccm.machines.statuses import says_nothing_new, similar
from ccm.model.machines import MachineStatus, Phase

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAILED = MachineStatus(
    phase=Phase.CRASH_LOOP, description="quota used up", code="ResourceExhausted", updated=NOW
)


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        pytest.param(
            "a" * 40 + " request 1234-5678",
            "a" * 40 + " request 9876-5432",
            True,
            marks=pytest.mark.row("machine-status-03"),
        ),
        pytest.param(
            "Drain failed", "Drain failed.", True, marks=pytest.mark.row("machine-status-04")
        ),
        ("", "", True),
        pytest.param(
            "Drain failed",
            "Initiate VM deletion",
            False,
            marks=pytest.mark.row("machine-status-05"),
        ),
        ("abcd", "abce", False),
        ("", "something", False),
        ("x" * 5000, "y" * 5000, False),
    ],
    ids=["request-id", "short", "empty", "different", "a-quarter", "nothing", "long"],
)
def test_similar_texts(one: str, other: str, wanted: bool) -> None:
    assert similar(one, other) is similar(other, one) is wanted


@pytest.mark.parametrize(
    ("changes", "old"),
    [
        pytest.param({}, True, marks=pytest.mark.row("machine-status-01")),
        ({"since": NOW + timedelta(minutes=1)}, True),
        ({"updated": NOW + timedelta(minutes=29)}, True),
        pytest.param(
            {"updated": NOW + timedelta(minutes=31)},
            False,
            marks=pytest.mark.row("machine-status-02"),
        ),
        ({"updated": None}, False),
        ({"phase": Phase.FAILED}, False),
        ({"code": "Internal"}, False),
        ({"known_state": "remember this"}, False),
        ({"description": "another thing altogether"}, False),
    ],
)
def test_what_need_not_be_written(changes: dict[str, object], old: bool) -> None:
    assert says_nothing_new(FAILED, replace(FAILED, **changes)) is old  # type: ignore[arg-type]
