"""What a controller needs of an event recorder."""

from __future__ import annotations

from typing import Protocol

from ccm.model import ObjectReference


class Recorder(Protocol):
    """Where events go (an `EventRecorder`)."""

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Record an event of kind `Normal` or `Warning`; never blocks."""
        ...
