"""What the guarded calls of all controllers have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ccm.cloud import answers, errors
from ccm.cloud.guarded import Guarded, Observer
from ccm.cloud.interface import Cloud

T = TypeVar("T")


class Calls:
    """Asks the provider of now, and checks what it answers.

    Args:
        guard: the handle all calls go through.
        observer: told about each call, for metrics of one controller.
    """

    def __init__(self, guard: Guarded, observer: Observer | None = None) -> None:
        self._guard = guard
        self._observer = observer

    @property
    def cloud(self) -> Cloud:
        """What the provider offers now."""
        return self._guard.cloud

    async def _ask(
        self,
        operation: str,
        invoke: Callable[[Cloud], Awaitable[object]],
        check: Callable[[object], T],
        *,
        subject: str = "",
    ) -> T:
        async def checked(cloud: Cloud) -> T:
            try:
                return check(await invoke(cloud))
            except answers.Wrong as wrong:
                raise errors.Internal(f"{operation} answered {wrong}") from None

        return await self._guard.call(operation, checked, subject=subject, observer=self._observer)


class ClusterCalls(Calls):
    """Calls that name the cluster.

    Args:
        guard: the handle all calls go through.
        cluster_name: name of the cluster towards the cloud.
        observer: told about each call, for metrics of one controller.
    """

    def __init__(
        self, guard: Guarded, *, cluster_name: str, observer: Observer | None = None
    ) -> None:
        super().__init__(guard, observer)
        self._cluster_name = cluster_name


def offered(capability: T | None, name: str) -> T:
    """The capability; raises Unimplemented where the cloud does not offer it."""
    if capability is None:
        raise errors.Unimplemented(f"this cloud does not offer {name}")
    return capability
