"""The end of the process by a deadline, whatever hangs in it."""

from __future__ import annotations

import faulthandler
import time

_STDERR = 2
"""Where the log goes; the number, for somebody may have put another object in its place."""

_AT_ONCE_S = 0.001


class LastResort:
    """Ends the process with exit code 1 at a deadline, unless it is called off before.

    The interpreter's own watchdog does it, a thread without Python code: a blocked event loop, a
    task that does not let itself be cancelled, a hanging thread or an extension that never lets
    go of the interpreter cannot hold it up. It says where each thread was, and may fall over a
    thread that runs on meanwhile: SIGSEGV ends the process then. Nothing is cleaned up.
    A process has only one watchdog, so of several ends the earliest counts, and there is one
    object of this class.
    """

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def arm(self, why: str, seconds: float) -> None:
        """End the process after so many seconds; takes the place of an end with the same reason."""
        self._ends[why] = time.monotonic() + seconds
        self._set()

    def call_off(self, *reasons: str) -> None:
        """Nothing hangs for these reasons, or for none if none is named; safe to repeat."""
        for why in reasons or tuple(self._ends):
            self._ends.pop(why, None)
        self._set()

    def _set(self) -> None:
        if not self._ends:
            faulthandler.cancel_dump_traceback_later()
            return
        left = min(self._ends.values()) - time.monotonic()
        faulthandler.dump_traceback_later(max(left, _AT_ONCE_S), exit=True, file=_STDERR)
