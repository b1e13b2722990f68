"""One thread for one store: what blocks runs there, in the order it was asked for.

A caller that is cancelled does not end what has begun; what comes after it still waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from ccm.persistence.errors import BackendUnavailable

P = ParamSpec("P")
T = TypeVar("T")


class Worker:
    """The thread.

    Args:
        name: of the thread.
        refused: what the library raises when something could not be done now.
        words: why, for people.
    """

    def __init__(
        self,
        name: str,
        refused: type[Exception] | tuple[type[Exception], ...],
        words: Callable[[Exception], str],
    ) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._refused = refused
        self._words = words

    async def run(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Call it there.

        Raises:
            BackendUnavailable: it could not be done.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, lambda: function(*args, **named))
        except self._refused as error:
            raise BackendUnavailable(self._words(error)) from error

    async def end(self) -> None:
        """All that was asked for is done."""
        await asyncio.to_thread(self._pool.shutdown)
