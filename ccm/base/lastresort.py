"""The end of the process by a deadline, whatever hangs in it."""

from __future__ import annotations

import os
import threading
import time


class LastResort:
    """Ends the process at a deadline, unless it is called off before.

    A thread of its own watches: a blocked event loop, a task that does not let itself be
    cancelled or a hanging thread cannot hold it up. Nothing is cleaned up then.
    """

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None
        self._end = 0.0

    def arm(self, seconds: float, code: int) -> None:
        """End the process with that exit code after so many seconds.

        An earlier end that is armed already stays: who set it knew why.
        """
        end = time.monotonic() + seconds
        if self._timer is not None and self._end <= end:
            return
        self.call_off()
        self._end = end
        self._timer = threading.Timer(seconds, os._exit, (code,))
        self._timer.daemon = True
        self._timer.start()

    def call_off(self) -> None:
        """Nothing hangs; safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
