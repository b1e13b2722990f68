"""Whatever happens in whatever order: in the end the cloud holds what is wanted, and no more."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ccm.cloud import errors
from ccm.kube.errors import ServerError
from tests.support.services import F, World

pytestmark = pytest.mark.virtual_time

SERVICES = ("a", "b", "c")
NODES = ("n1", "n2", "n3", "n4")
SLOW_S = (0, 0, 0.3, 2, 7, 20)
PAUSES_S = (0, 0.01, 0.1, 0.5, 1, 3, 12)
LONGEST_S = 1500.0
"""All back-offs are over by then."""


class Faults:
    """Random changes of one world."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.log: list[str] = []
        self.changes: list[Callable[[str], object]] = [
            self.created,
            self.created,
            self.deleted,
            self.vanished,
            self.made_anew,
            self.retyped,
            self.retyped,
            self.other_ports,
            self.finalizers_changed,
            self.status_wiped,
            self.node,
            self.node,
            self.node_gone,
            self.cloud_fails,
            self.cloud_recovers,
            self.writes_fail,
            self.cache_stops,
            self.cache_goes_on,
        ]

    async def strike(self) -> None:
        """One change of something, and a while."""
        change, name = self.rng.choice(self.changes), self.rng.choice(SERVICES)
        self.log.append(f"{change.__name__} {name}")
        change(name)
        self.world.balancers.seconds = self.rng.choice(SLOW_S)
        await self.world.pass_time(self.rng.choice(PAUSES_S))

    async def end(self) -> None:
        """No trouble any more; who waits for others' finalizers gets on."""
        world = self.world
        self.cloud_recovers("")
        world.write_faults = []
        world.catch_up()
        world.balancers.seconds = 0
        await world.pass_time(LONGEST_S)
        for body in list(world.objects.values()):
            meta = body["metadata"]
            if meta.get("deletionTimestamp"):
                left = [name for name in meta["finalizers"] if name != "foo"]
                world.meta(meta["name"], finalizers=left)
        await world.pass_time(LONGEST_S)

    def body(self, name: str) -> dict[str, Any] | None:
        return self.world.objects.get(f"default/{name}")

    def living(self, name: str) -> bool:
        body = self.body(name)
        return body is not None and not body["metadata"].get("deletionTimestamp")

    def created(self, name: str) -> None:
        if self.body(name) is None:
            kind = self.rng.choice(("LoadBalancer", "LoadBalancer", "ClusterIP"))
            self.world.service(name, type_=kind, finalizers=self.rng.choice(([], ["foo"])))

    def deleted(self, name: str) -> None:
        if self.body(name) is not None:
            self.world.delete(name)

    def vanished(self, name: str) -> None:
        self.world.vanish(f"default/{name}")

    def made_anew(self, name: str) -> None:
        if self.body(name) is not None:
            self.world.service(name, uid=f"uid-{self.rng.random()}")

    def retyped(self, name: str) -> None:
        if self.living(name):
            self.world.change(name, type=self.rng.choice(("LoadBalancer", "ClusterIP")))

    def other_ports(self, name: str) -> None:
        if self.body(name) is not None:
            port = {"port": self.rng.randint(1, 99), "protocol": "TCP", "targetPort": 80}
            self.world.change(name, ports=[port])

    def finalizers_changed(self, name: str) -> None:
        if self.living(name):
            self.world.meta(name, finalizers=self.rng.choice((None, ["foo"], ["foo", F])))

    def status_wiped(self, name: str) -> None:
        if self.body(name) is not None:
            self.world.wipe_status(name)

    def node(self, _: str) -> None:
        self.world.node(self.rng.choice(NODES))

    def node_gone(self, _: str) -> None:
        self.world.remove_node(self.rng.choice(NODES))

    def cloud_fails(self, _: str) -> None:
        operation = self.rng.choice(("ensure", "get", "update", "delete"))
        kinds = (errors.Internal, errors.Unavailable, errors.InvalidArgument)
        later = errors.RetryAfter("later", seconds=3)
        self.world.balancers.faults[operation] = self.rng.choice(
            (later, *(kind("no") for kind in kinds))
        )

    def cloud_recovers(self, _: str) -> None:
        self.world.balancers.faults.clear()

    def writes_fail(self, _: str) -> None:
        fault = ServerError(status=500, reason="Boom", message="no")
        self.world.write_faults = [fault] * self.rng.randint(1, 3)

    def cache_stops(self, _: str) -> None:
        self.world.cache_lags = True

    def cache_goes_on(self, _: str) -> None:
        self.world.catch_up()


@pytest.mark.parametrize("seed", range(25))
async def test_the_end_is_what_is_wanted(seed: int) -> None:
    rng = random.Random(seed)
    world = World(digests=rng.random() < 0.5, cloud={"always_ensure_deleted": rng.random() < 0.5})
    faults = Faults(world, rng)
    async with world.running(workers=rng.choice((1, 2, 4))):
        for _ in range(rng.randint(10, 60)):
            await faults.strike()
        await faults.end()

    members = tuple(sorted(node.name for node in world.nodes.store.list()))
    bodies = list(world.objects.values())
    served = [body for body in bodies if body["spec"]["type"] == "LoadBalancer"]
    held = {name: given for name, (_, given) in world.balancers.held.items()}
    wanted = {f"a{body['metadata']['uid']}".replace("-", "")[:32]: members for body in served}
    shown = [body for body in bodies if body["status"]["loadBalancer"].get("ingress")]
    marked = [body for body in bodies if F in (body["metadata"].get("finalizers") or ())]
    stuck = [body for body in bodies if body["metadata"].get("deletionTimestamp")]

    assert held == wanted, faults.log
    assert shown == served, faults.log
    assert marked == served, faults.log
    assert stuck == [], faults.log
