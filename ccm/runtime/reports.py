"""Which failures of objects are worth a warning: a new cause, and one that lasts. No waiting."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ccm.base.outage import REPEAT_S
from ccm.cloud.errors import Retry
from ccm.runtime.backoff import RetryDecision

K = TypeVar("K", bound=Hashable)

PATIENCE_S = 60.0
"""Age at which an error without an event is worth a warning: a busy cloud, a conflict."""


@dataclass(slots=True)
class _Cause:
    text: str
    since: float
    reported_at: float


class FailureReports(Generic[K]):
    """Decides for each failure whether it is reported.

    Args:
        repeat_s: shortest time between two reports with one cause about one key.
    """

    def __init__(self, *, repeat_s: float = REPEAT_S) -> None:
        self._repeat_s = repeat_s
        self._causes: dict[K, _Cause] = {}

    def is_due(self, key: K, error: Exception, decision: RetryDecision, now: float) -> bool:
        """Record a failure; return whether to report it."""
        # Passing trouble is known by its class: its text may carry a request ID of each attempt.
        text = str(error) if decision.retry is Retry.SLOW else type(error).__name__
        cause = self._causes.get(key)
        if cause is None or cause.text != text:
            cause = self._causes[key] = _Cause(text, now, now - self._repeat_s)
        patience_s = 0.0 if decision.event else PATIENCE_S
        if now < max(cause.since + patience_s, cause.reported_at + self._repeat_s):
            return False
        cause.reported_at = now
        return True

    def forget(self, key: K) -> None:
        """Forget the cause: the key succeeded or is gone."""
        self._causes.pop(key, None)

    def keep(self, keys: Collection[K]) -> None:
        """Forget all other keys: nothing is to be done about them any more."""
        for key in self._causes.keys() - set(keys):
            del self._causes[key]
