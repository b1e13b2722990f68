"""How the daemon ends when calls to the cloud do not."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from ccm.app import daemon, options, stopping
from ccm.base.tasks import cancel_and_join, spawn


class Failing(Mock):
    """A daemon whose work fails."""

    async def run(self) -> int:
        await asyncio.sleep(0)
        raise ValueError("a defect")


@pytest.mark.parametrize("calls", [0, 1])
async def test_what_ended_the_daemon_is_said_before_it_is_ended_by_force(calls: int) -> None:
    """Nobody comes to say it afterwards where a thread hangs, and the exit code tells it too."""
    failing = Failing(abandoned_calls=calls)
    served = spawn(asyncio.Event().wait(), name="served")
    with capture_logs() as lines, pytest.raises(ValueError, match="a defect"):
        await daemon._live(failing, served, options.parse([]))  # type: ignore[arg-type]
    await cancel_and_join(served)

    said = [line["exc_info"] for line in lines if line["log_level"] == "error"]
    assert [str(error) for error in said] == ["a defect"] * calls
    failing.let_go.assert_called_once_with(stopping.EXIT_DEFECT)
