"""The handles through which controllers change the world, in a way that stopping can respect.

What only asks is cancelled at once when the daemon stops. What changes something at the API
server or in the cloud is let come to its end, within a grace period: a request cut on its way
may still be carried out, when somebody else leads already.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from ccm.base import drain
from ccm.cloud.guarded import Guarded, Observer
from ccm.cloud.interface import Cloud
from ccm.kube.client import Client

T = TypeVar("T")

CHANGES = frozenset(
    {
        "ensure_load_balancer",
        "update_load_balancer",
        "ensure_load_balancer_deleted",
        "create_route",
        "delete_route",
    }
)
"""The calls that change something in the cloud; all others ask."""


class CarefulGuard(Guarded):
    """The handle to the cloud."""

    async def call(
        self,
        operation: str,
        invoke: Callable[[Cloud], Awaitable[T]],
        *,
        subject: str = "",
        observer: Observer | None = None,
    ) -> T:
        """See `Guarded.call`; waiting for the rate limit is not yet a change."""
        if operation not in CHANGES:
            return await super().call(operation, invoke, subject=subject, observer=observer)

        async def change(cloud: Cloud) -> T:
            async with drain.change(long=True):
                return await invoke(cloud)

        return await super().call(operation, change, subject=subject, observer=observer)


class CarefulClient(Client):
    """A client of the API server for controllers."""

    def sending(self, method: str) -> AbstractAsyncContextManager[None]:
        """Whatever does not only ask is let come to its end."""
        return super().sending(method) if method == "GET" else drain.change()
