"""Runs the daemon, and writes down when its event loop stood still.

`python -m tests.benchmarks.ticking FILE FLAG...`: a line for each time a ticker came late, when
that was (seconds of the clock), by how many milliseconds, and how many milliseconds of processor
time went by meanwhile: on a busy machine other processes are part of the lateness.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TextIO

TICK_S = 0.002
LEAST_S = 0.005
"""Minimum length of a recorded stall."""


async def tick(out: TextIO) -> None:
    """Watch the running loop until cancelled."""
    while True:
        began, used = time.perf_counter(), time.thread_time()
        await asyncio.sleep(TICK_S)
        late_s = time.perf_counter() - began - TICK_S
        if late_s > LEAST_S:
            cpu_s = time.thread_time() - used
            out.write(f"{time.time():.3f} {1000 * late_s:.1f} {1000 * cpu_s:.1f}\n")


def longest(file: Path, since: float, until: float) -> dict[str, float]:
    """The longest that it stood still between two moments, and the most processor time."""
    found = [[float(word) for word in line.split()] for line in file.read_text().splitlines()]
    within = [one for one in found if since <= one[0] <= until]
    none = 1000 * LEAST_S
    return {
        "stall_ms": max((one[1] for one in within), default=none),
        "stall_cpu_ms": max((one[2] for one in within), default=none),
    }


if __name__ == "__main__":
    from ccm.__main__ import main
    from ccm.app.health import DaemonState

    with Path(sys.argv.pop(1)).open("w", buffering=1) as sink:
        beat = DaemonState.measure_loop_lag

        async def watched(self: DaemonState) -> None:
            """In the place of the daemon's own look at its loop, and beside it."""
            ticking = asyncio.ensure_future(tick(sink))
            try:
                await beat(self)
            finally:
                ticking.cancel()

        DaemonState.measure_loop_lag = watched  # type: ignore[method-assign]
        main()
