"""One simulated cloud: what it holds, how it behaves, and who called. No I/O."""

from __future__ import annotations

import asyncio
import random

from . import faults, traffic, worlds


class Simulation:
    """A cloud's content, its settings, its faults and its call log.

    Args:
        seed: makes instance IDs repeatable; None makes them differ from run to run.
        settings: those to begin with.
    """

    def __init__(
        self, *, seed: int | None = None, settings: traffic.Settings | None = None
    ) -> None:
        self.worlds = worlds.Worlds(random.Random(seed))
        self.world = self.worlds.instances
        self.script = faults.Script()
        self.calls = traffic.CallLog()
        self.released = asyncio.Event()
        self.change_settings(settings or traffic.Settings())

    def change_settings(self, settings: traffic.Settings) -> None:
        """Take on new settings; the rate limits start afresh."""
        self.settings = settings
        self.worlds.use(settings)
        self.rate_limit = traffic.RateLimit(settings.rate_limit)
        self.order_rate_limit = traffic.RateLimit(settings.order_rate_limit)

    def heal(self) -> None:
        """Disarm every fault and let hanging calls go: their connections are dropped."""
        self.script.clear()
        self.released.set()
        self.released = asyncio.Event()
