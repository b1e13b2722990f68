"""Many calls of a kind, a few at first: where the first are refused the others are not made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ccm.base import tasks
from ccm.kube.errors import KubeError

T = TypeVar("T")


async def slow_start(
    items: Sequence[T], call: Callable[[T], Awaitable[None]], *, first: int = 1
) -> tuple[int, KubeError | None]:
    """Call for each item: `first` of them at once, then twice as many, and so on.

    The first batch in which a call fails is the last one.

    Returns:
        How many calls succeeded, and an error of the last batch.
    """
    done, size = 0, min(len(items), first)
    rest = list(items)
    while rest and size > 0:
        batch, rest = rest[:size], rest[size:]
        errors = await together(batch, call)
        done += len(batch) - len(errors)
        if errors:
            return done, errors[0]
        size *= 2
    return done, None


async def together(items: Sequence[T], call: Callable[[T], Awaitable[None]]) -> Sequence[KubeError]:
    """Call for all items at once; the errors."""
    errors = list[KubeError]()

    async def one(item: T) -> None:
        try:
            await call(item)
        except KubeError as error:
            errors.append(error)

    await tasks.bounded(items, one, limit=len(items), name="burst")
    return errors
