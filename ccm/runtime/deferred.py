"""A controller that has to wait for something before it can be made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ccm.runtime.account import Account
from ccm.runtime.controller import Runnable


class Deferred:
    """Waits, then makes the controller and runs it.

    Args:
        ready: returns when the controller can be made.
        make: makes it.
    """

    def __init__(
        self,
        ready: Callable[[], Awaitable[None]],
        make: Callable[[], Runnable],
    ) -> None:
        self._ready = ready
        self._make = make
        self._controller: Runnable | None = None

    async def run(self) -> None:
        """Wait, then work until cancelled."""
        await self._ready()
        self._controller = self._make()
        await self._controller.run()

    def retry_now(self) -> None:
        """See `Runnable`."""
        if self._controller is not None:
            self._controller.retry_now()

    def account(self, kind: str, name: str) -> Account | None:
        """See `Runnable`."""
        return None if self._controller is None else self._controller.account(kind, name)
