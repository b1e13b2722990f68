"""A daemon that hangs, and is ended by the watchdog of its interpreter."""

from __future__ import annotations

import signal

from tests.scenario.harness import Daemon

# The watchdog reads the frames of threads that run on meanwhile: now and then it reads one that
# is just gone, and falls. The process has ended then as well, which is what it is for.
ENDS = {1, -signal.SIGSEGV}


async def cut_short(daemon: Daemon) -> str:
    """Wait until a daemon's watchdog has ended it; what that wrote, which is no surprise then."""
    assert await daemon.ended() in ENDS
    said, mark, report = daemon.output.partition("Timeout (")
    assert mark
    assert all(line.startswith("{") for line in said.splitlines())
    daemon.surprises = list  # type: ignore[method-assign]
    return report
