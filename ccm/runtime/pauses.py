"""Items that are left alone for a while because work on them failed. No waiting, no clock.

For controllers that decide anew before each try, where a queue of keys would repeat the try
itself. How long a pause lasts follows from the class of the error, as in `loop`; pauses
that an outage caused end together when the other side answers again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

from ccm.base.backoff import Exponential
from ccm.runtime.retry import Again, delay_s

K = TypeVar("K", bound=Hashable)


class Pauses(Generic[K]):
    """How often in a row an item failed, and until when it is left alone.

    Args:
        policy: delays where the error says nothing more special.
        rng: jitter.
    """

    def __init__(self, policy: Exponential, rng: random.Random) -> None:
        self._policy = policy
        self._rng = rng
        self._failures: dict[K, int] = {}
        self._until: dict[K, float] = {}
        self._outages: set[K] = set()

    def begin(self, key: K, answer: Again, now: float) -> float:
        """Record a failure; the seconds until the next try."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        seconds = delay_s(answer, failures)
        if seconds is None:
            seconds = self._policy.delay(failures, self._rng)
        self._until[key] = now + seconds
        if answer.outage:
            self._outages.add(key)
        else:
            self._outages.discard(key)
        return seconds

    def lasts(self, key: K, now: float) -> bool:
        """Whether an item is to be left alone now."""
        return self._until.get(key, now) > now

    def first_end(self, now: float) -> float:
        """When the first of the pauses that last ends; infinity when there is none."""
        return min((until for until in self._until.values() if until > now), default=math.inf)

    def end_outages(self) -> bool:
        """The other side answers again: end the pauses of its outage; whether there were any."""
        for key in self._outages:
            self._until.pop(key, None)
        ended = bool(self._outages)
        self._outages.clear()
        return ended

    def forget(self, key: K) -> None:
        """The work succeeded."""
        self._failures.pop(key, None)
        self._until.pop(key, None)
        self._outages.discard(key)

    def recovered(self, key: K) -> None:
        """The work succeeded; after an outage it will, most likely, for the others too."""
        ends_outage = key in self._outages
        self.forget(key)
        if ends_outage:
            self.end_outages()

    def __len__(self) -> int:
        """Items whose last try failed."""
        return len(self._failures)

    def keep(self, keys: Collection[K]) -> None:
        """Forget all others: nothing is to be done about them any more."""
        for key in self._failures.keys() - set(keys):
            self.forget(key)
