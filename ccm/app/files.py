"""How many files and connections this process may hold open."""

from __future__ import annotations

import contextlib
import resource

MOST = 65_536
"""More would only make a leak last longer."""


def raise_limit() -> None:
    """Use what the system allows; a shell gives 1,024 (Go does the same when a program starts)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # A sandbox may forbid it: then there are fewer.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
