"""A daemon that hangs, and is ended by the watchdog of its interpreter."""

from __future__ import annotations

from tests.scenario.harness import Daemon


async def cut_short(daemon: Daemon) -> str:
    """Wait until a daemon's watchdog has ended it; what that wrote, which is no surprise then."""
    assert await daemon.ended() == 1
    said, mark, report = daemon.output.partition("Timeout (")
    assert mark
    assert all(line.startswith("{") for line in said.splitlines())
    daemon.surprises = list  # type: ignore[method-assign]
    return report
