"""After random changes and faults the cloud holds exactly the wanted load balancers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ccm.cloud import errors
from ccm.kube.errors import ServerError
from tests.support.services import F, World, ports

pytestmark = pytest.mark.virtual_time

SERVICES = ("a", "b", "c")
NODES = ("n1", "n2", "n3", "n4")
SLOW_S = (0, 0, 0.3, 2, 7, 20)
PAUSES_S = (0, 0.01, 0.1, 0.5, 1, 3, 12)
LONGEST_S = 1500.0
"""Longer than every back-off."""


def body(world: World, name: str) -> dict[str, Any] | None:
    return world.objects.get(f"default/{name}")


def living(world: World, name: str) -> bool:
    found = body(world, name)
    return found is not None and not found["metadata"].get("deletionTimestamp")


def created(world: World, name: str, rng: random.Random) -> None:
    if body(world, name) is None:
        kind = rng.choice(("LoadBalancer", "LoadBalancer", "ClusterIP"))
        world.service(name, type_=kind, finalizers=rng.choice(([], ["foo"])))


def cloud_fails(world: World, _: str, rng: random.Random) -> None:
    kinds = (errors.Internal, errors.Unavailable, errors.InvalidArgument)
    later = errors.RetryAfter("later", seconds=3)
    operation = rng.choice(("ensure", "get", "update", "delete"))
    world.balancers.faults[operation] = rng.choice((later, *(kind("no") for kind in kinds)))


def writes_fail(world: World, _: str, rng: random.Random) -> None:
    fault = ServerError(status=500, reason="Boom", message="no")
    world.write_faults = [fault] * rng.randint(1, 3)


def cache_stops(world: World, _: str, __: random.Random) -> None:
    world.cache_lags = True


Change = Callable[[World, str, random.Random], object]
TYPES = ("LoadBalancer", "ClusterIP")
FINALIZERS = (None, ["foo"], ["foo", F])


def when(test: Callable[[World, str], object], change: Change) -> Change:
    return lambda world, name, rng: change(world, name, rng) if test(world, name) else None


CHANGES: list[Change] = [
    *[created] * 2,
    *[when(living, lambda world, name, rng: world.change(name, type=rng.choice(TYPES)))] * 2,
    *[lambda world, _, rng: world.node(rng.choice(NODES))] * 2,
    lambda world, _, rng: world.remove_node(rng.choice(NODES)),
    when(body, lambda world, name, rng: world.change(name, ports=ports(rng.randint(1, 99)))),
    when(body, lambda world, name, rng: world.service(name, uid=f"uid-{rng.random()}")),
    when(body, lambda world, name, _: world.wipe_status(name)),
    when(body, lambda world, name, _: world.delete(name)),
    when(living, lambda world, name, rng: world.meta(name, finalizers=rng.choice(FINALIZERS))),
    lambda world, name, _: world.vanish(f"default/{name}"),
    cloud_fails,
    lambda world, _, __: world.balancers.faults.clear(),
    writes_fail,
    cache_stops,
    lambda world, _, __: world.catch_up(),
]


async def end(world: World) -> None:
    """Clear all faults, and remove the finalizers of other controllers."""
    world.balancers.faults.clear()
    world.write_faults = []
    world.catch_up()
    world.balancers.seconds = 0
    await world.pass_time(LONGEST_S)
    for found in list(world.objects.values()):
        meta = found["metadata"]
        if meta.get("deletionTimestamp"):
            left = [name for name in meta["finalizers"] if name != "foo"]
            world.meta(meta["name"], finalizers=left)
    await world.pass_time(LONGEST_S)


@pytest.mark.parametrize("seed", range(25))
async def test_random_changes_and_faults_converge_to_the_wanted_state(seed: int) -> None:
    rng = random.Random(seed)
    world = World(digests=rng.random() < 0.5, cloud={"always_ensure_deleted": rng.random() < 0.5})
    done: list[tuple[int, str]] = []
    async with world.running(workers=rng.choice((1, 2, 4))):
        for _ in range(rng.randint(10, 60)):
            done.append((rng.randrange(len(CHANGES)), rng.choice(SERVICES)))
            CHANGES[done[-1][0]](world, done[-1][1], rng)
            world.balancers.seconds = rng.choice(SLOW_S)
            await world.pass_time(rng.choice(PAUSES_S))
        await end(world)

    members = tuple(sorted(node.name for node in world.nodes.store.list()))
    bodies = list(world.objects.values())
    served = [body for body in bodies if body["spec"]["type"] == "LoadBalancer"]
    held = {name: given for name, (_, given) in world.balancers.held.items()}
    wanted = {f"a{body['metadata']['uid']}".replace("-", "")[:32]: members for body in served}
    shown = [body for body in bodies if body["status"]["loadBalancer"].get("ingress")]
    marked = [body for body in bodies if F in (body["metadata"].get("finalizers") or ())]
    stuck = [body for body in bodies if body["metadata"].get("deletionTimestamp")]

    assert held == wanted, done
    assert shown == served, done
    assert marked == served, done
    assert stuck == [], done
