"""What an object of a provider has to have, seen before it is first called."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ccm.cloud import Cloud, InstancesByPower, Node
from ccm.cloud.calls.capabilities import incomplete


class Instances:
    async def instance_exists(self, node: Node) -> bool:
        return True

    async def instance_shutdown(self, node: Node) -> bool:
        return False

    async def instance_metadata(self, node: Node) -> None:
        return None


class Balancers:
    def get_load_balancer_name(self, cluster_name: str, service: object) -> str:
        return ""

    async def get_load_balancer(self, cluster_name: str, service: object) -> None: ...

    async def ensure_load_balancer(
        self, cluster_name: str, service: object, nodes: object
    ) -> None: ...

    async def update_load_balancer(
        self, cluster_name: str, service: object, nodes: object
    ) -> None: ...

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: object) -> None: ...


def of(field: str, base: type, **methods: object) -> Cloud:
    """A cloud with one object, of a class that has these methods too."""
    fields: dict[str, Any] = {field: type("Acme", (base,), methods)()}
    return Cloud(name="acme", **fields)


async def one_too_few(self: object, service: object) -> None: ...


async def named(self: object, cluster_name: str, service: object) -> str:
    return ""


def answers(self: object, node: Node) -> bool:
    return True


class Unensured(Balancers):
    ensure_load_balancer: Any = None


@pytest.mark.parametrize(
    ("cloud", "fault"),
    [
        (
            of("routes", object, list_routes=named, create_route=named),
            "routes: Acme.delete_route is missing; write it",
        ),
        (
            of("load_balancer", Unensured, ensure_loadbalancer=one_too_few),
            "load_balancer: Acme.ensure_load_balancer is missing; is ensure_loadbalancer misspelt?",
        ),
        (
            of("instances", Instances, instance_exists=True),
            "instances: Acme.instance_exists is missing; write it",
        ),
        (
            of("instances", Instances, instance_exists=answers),
            "instances: Acme.instance_exists cannot be awaited; write `async def`",
        ),
        (
            of("load_balancer", Balancers, get_load_balancer_name=named),
            "load_balancer: Acme.get_load_balancer_name has to be awaited; write `def`",
        ),
        (
            of("load_balancer", Balancers, get_load_balancer=one_too_few),
            "Acme.get_load_balancer does not take its arguments; they are (cluster_name, service)",
        ),
        (
            of("instances", Instances, instance_state=answers),
            "instances: Acme.instance_state cannot be awaited; write `async def`",
        ),
        (
            of("load_balancer", Balancers, list_load_balancers=one_too_few),
            "load_balancer: Acme.load_balancer_digest is missing; write it",
        ),
    ],
    ids=lambda value: value.rpartition(": ")[2] if isinstance(value, str) else "",
)
def test_what_is_missing_or_of_another_form_is_named(cloud: Cloud, fault: str) -> None:
    assert [told for told in incomplete(cloud) if told.endswith(fault)]


def test_all_faults_are_told_at_once() -> None:
    cloud = of("routes", object)

    assert incomplete(cloud) == [
        f"routes: Acme.{method} is missing; write it"
        for method in ("create_route", "delete_route", "list_routes")
    ]


class Power(InstancesByPower):
    async def instance_power(self, node: Node) -> Any: ...

    async def instance_metadata(self, node: Node) -> None: ...


def decorated(act: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """As a decorator of a vendor does it: the outer function is not async."""

    @functools.wraps(act)
    def outer(*given: Any, **named: Any) -> Awaitable[Any]:
        return act(*given, **named)

    return outer


def in_thread(act: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """The other way about."""

    @functools.wraps(act)
    async def outer(*given: Any, **named: Any) -> Any:
        return act(*given, **named)

    return outer


class Question:
    async def __call__(self, node: Node) -> Any: ...


@pytest.mark.parametrize(
    "cloud",
    [
        Cloud(name="bare"),
        of("instances", Power),
        of("instances", Instances, instance_exists=decorated(Instances.instance_exists)),
        of("instances", Instances, instance_exists=in_thread(answers)),
        of("instances", Instances, instance_state=Question()),
        of("instances", Instances, instance_state=staticmethod(functools.partial(named, 0, ""))),
        of("clusters", object),
    ],
    ids=["bare", "by power", "decorated", "in thread", "object", "partial", "not called"],
)
def test_what_can_be_called_is_complete(cloud: Cloud) -> None:
    assert incomplete(cloud) == []
