"""A provider whose every method does one thing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ccm.cloud import Cloud, LoadBalancer, Service
from ccm.cloud.calls.client import CloudClient
from ccm.model import ObjectMeta

ENSURE = LoadBalancer.ensure_load_balancer


class Provider:
    """Has every interface; a call counts and does what `act` does."""

    def __init__(self, act: Callable[[], Awaitable[Any]]) -> None:
        self.act = act
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)

        async def method(*_: object) -> Any:
            self.asked.append(name)
            return await self.act()

        return method

    def cloud(self, name: str, **fields: Any) -> Cloud:
        own: Any = self
        return Cloud(
            name=name,
            instances=own,
            instances_v1=own,
            zones=own,
            inventory=own,
            load_balancer=own,
            routes=own,
            machines=own,
            **fields,
        )


def cloud(name: str, act: Callable[[], Awaitable[Any]], **fields: Any) -> Cloud:
    """A cloud whose every method does that."""
    return Provider(act).cloud(name, **fields)


async def ensure(handle: CloudClient, uid: str = "") -> object:
    """A change, about one Service."""
    return await handle.call(ENSURE, "c1", Service(metadata=ObjectMeta(name="web", uid=uid)), ())
