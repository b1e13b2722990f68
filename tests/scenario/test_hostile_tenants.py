"""A tenant fills the cluster with every object that the API server accepts, beside another one.

A real kube-apiserver, the simulated cloud and a daemon as its users run it, with default limits.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import string
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.base import tasks
from ccm.gardener.names import CLASS_KIND, GROUP, VERSION
from ccm.sandbox import GARDENER, machineapis
from providers.sim.balancers import PREFIX, SCHEMA
from tests import servers
from tests.benchmarks import proc
from tests.benchmarks.world import World, open_world
from tests.scenario import harness

MOST_MIB = 256.0
"""The limit of the manifests."""

TIMES = 2.0
"""How many times as long as undisturbed other tenants may have to wait."""

SEED = 20261126
MANY_SERVICES, MANY_MACHINES, SECRETS = 2000, 200, 50
CALM_SERVICES, CALM_MACHINES = 40, 20
"""Objects of the other tenant: enough to outlast the work that is in progress anyway."""

MACHINES = f"/apis/{GROUP}/{VERSION}/namespaces/{machineapis.NAMESPACE}"
FLAGS = ("--controllers=*,machine,machineclass,machinesafety", "--configure-cloud-routes=false")
PATIENCE_S = 600.0
AT_ONCE = 16
LARGEST = 1_000_000

pytestmark = [pytest.mark.soak, pytest.mark.envtest, pytest.mark.timeout(1800)]


def text(rng: random.Random, most: int) -> str:
    """Anything that JSON can have."""
    letters = rng.choice([string.ascii_letters, string.digits, string.printable, "äß大\u202e\x1b²"])
    return "".join(rng.choices(letters, k=rng.randrange(most)))


def value(rng: random.Random) -> str:
    """Return a random value of an annotation, often nearly right."""
    made = [
        text(rng, 40),
        text(rng, 4000),
        "9" * rng.randrange(1, 5000),
        rng.choice(["true", "false", "-1", "0", "1e400", "NaN", "²", "10s", "0x10"]),
        ",".join(text(rng, 12) for _ in range(rng.randrange(200))),
    ]
    return rng.choice(made)


def random_annotations(rng: random.Random, names: Sequence[str]) -> dict[str, str]:
    found = {rng.choice(names): value(rng) for _ in range(rng.randrange(4))}
    return found | {f"example.com/{n}": value(rng) for n in range(rng.randrange(4))}


def hostile_service(rng: random.Random, number: int) -> dict[str, Any]:
    ports = [
        {"name": f"p{n}", "port": rng.randrange(1, 65536), "protocol": rng.choice(["TCP", "UDP"])}
        for n in range(rng.randrange(1, 12))
    ]
    spec: dict[str, Any] = {"type": "LoadBalancer", "ports": ports}
    if len(ports) > 2:
        # The API server has not so many node ports.
        spec["allocateLoadBalancerNodePorts"] = False
    if rng.random() < 0.3:
        spec["loadBalancerSourceRanges"] = [
            f"10.{rng.randrange(256)}.{n % 256}.0/24" for n in range(rng.randrange(1, 200))
        ]
    if rng.random() < 0.2:
        spec["externalTrafficPolicy"] = "Local"
    if rng.random() < 0.1:
        spec["loadBalancerClass"] = "example.com/other"
    if rng.random() < 0.1:
        spec["loadBalancerIP"] = text(rng, 20)
    known = [*(one.name for one in SCHEMA), f"{PREFIX}{text(rng, 5)}a"]
    metadata = {"name": f"hostile-{number}", "annotations": random_annotations(rng, known)}
    return {"metadata": metadata, "spec": spec}


def hostile_secret(rng: random.Random, number: int, good: dict[str, Any]) -> dict[str, Any]:
    """A Secret of up to 1 MiB; some look like credentials, with one that no header can have."""
    size = rng.randrange(1, LARGEST // 2)
    filling = rng.choice([b"a", b"\n", b"token=", b"\x00\xff", rng.randbytes(64)])
    data = dict(good)
    key = rng.choice(["token", "userData", "url", "other"])
    data[key] = base64.b64encode((filling * (size // len(filling) + 1))[:size]).decode()
    return {"metadata": {"name": f"hostile-{number}"}, "data": data}


def hostile_class(rng: random.Random, number: int) -> dict[str, Any]:
    spec = {
        "machineType": rng.choice(["small", text(rng, 20), rng.randrange(10**6)]),
        "zone": text(rng, 20),
        text(rng, 10): value(rng),
    }
    reference = {"name": f"hostile-{number}", "namespace": machineapis.NAMESPACE}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": CLASS_KIND, "providerSpec": spec}
    return {**body, "metadata": {"name": f"hostile-{number}"}, "secretRef": reference}


def hostile_machine(rng: random.Random, number: int) -> dict[str, Any]:
    of = rng.choice([machineapis.CLASS, f"hostile-{rng.randrange(SECRETS)}", "nowhere"])
    spec: dict[str, Any] = {"class": {"kind": CLASS_KIND, "name": of}}
    if rng.random() < 0.3:
        spec["providerID"] = rng.choice(["sim://x", text(rng, 300), f"sim:///{number}"])
    metadata = {
        "name": f"hostile-{number}",
        "annotations": random_annotations(rng, ["example.com/x"]),
    }
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "Machine",
        "metadata": metadata,
        "spec": spec,
    }


CORE = f"/api/v1/namespaces/{machineapis.NAMESPACE}"
HOSTILE, CALM = (f"/api/v1/namespaces/{name}/services" for name in ("hostile", "calm"))


async def post(world: World, path: str, bodies: Sequence[dict[str, Any]]) -> int:
    """Create objects, several at once; how many of them the API server takes."""
    line = asyncio.Semaphore(AT_ONCE)

    async def one(body: dict[str, Any]) -> bool:
        async with line, world.api.post(path, json=body) as response:
            answer = await response.text()
            assert response.status in (201, 400, 422), answer
            return response.status == 201

    return sum(await asyncio.gather(*map(one, bodies)))


async def attack(world: World, credentials: dict[str, Any]) -> None:
    """Make all that the hostile tenant has, as often as the API server takes it."""
    rng = random.Random(SEED)
    kinds: Sequence[tuple[str, Callable[[int], dict[str, Any]], int]] = (
        (f"{CORE}/secrets", lambda n: hostile_secret(rng, n, credentials), SECRETS),
        (f"{MACHINES}/machineclasses", partial(hostile_class, rng), SECRETS),
        (f"{MACHINES}/machines", partial(hostile_machine, rng), MANY_MACHINES),
        (HOSTILE, partial(hostile_service, rng), MANY_SERVICES),
    )
    for path, make, count in kinds:
        taken = number = 0
        while taken < count:
            numbers = range(number, number + count - taken)
            taken += await post(world, path, [make(n) for n in numbers])
            number = numbers.stop


async def work(world: World, name: str) -> dict[str, float]:
    """Create the other tenant's Services and Machines; return the seconds until each are served."""
    began = time.monotonic()
    spec = {"class": {"kind": CLASS_KIND, "name": machineapis.CLASS}}
    kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Machine"}
    balancer = {"type": "LoadBalancer", "ports": [{"port": 80}]}
    services = [
        {"metadata": {"name": f"{name}-{n}"}, "spec": balancer} for n in range(CALM_SERVICES)
    ]
    vms = [
        {**kind, "metadata": {"name": f"{name}-{n}"}, "spec": spec} for n in range(CALM_MACHINES)
    ]
    assert await post(world, CALM, services) == CALM_SERVICES
    assert await post(world, f"{MACHINES}/machines", vms) == CALM_MACHINES

    async def served(path: str) -> bool:
        async with world.api.get(path) as response:
            items = (await response.json())["items"]
        ours = [one for one in items if one["metadata"]["name"].startswith(f"{name}-")]
        return all(
            one["spec"].get("providerID")
            or one.get("status", {}).get("loadBalancer", {}).get("ingress")
            for one in ours
        )

    async def served_s(path: str) -> float:
        await harness.wait_for(partial(served, path), "all are served", within_s=PATIENCE_S)
        return time.monotonic() - began

    services_s, machines_s = await asyncio.gather(served_s(CALM), served_s(f"{MACHINES}/machines"))
    return {"services_s": services_s, "machines_s": machines_s}


async def test_a_hostile_tenant_at_most_doubles_the_wait_of_another_tenant(
    tmp_path: Path,
) -> None:
    servers.require_assets()
    async with open_world(tmp_path) as world:
        await harness.define(world.api)
        cluster = harness.Cluster(world.api)
        for name in ("calm", "hostile"):
            await cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
        config = yaml.safe_load(Path(world.cloud_config).read_text())
        for one in machineapis.APIS[GARDENER].simulated(config["token"]):
            is_secret = one["kind"] == "Secret"
            version = "v1" if is_secret else f"{GROUP}/{VERSION}"
            path = f"{CORE}/secrets" if is_secret else f"{MACHINES}/machineclasses"
            await cluster.create(path, {"apiVersion": version, **one})
        credentials = {
            key: base64.b64encode(str(config[key]).encode()).decode() for key in ("url", "token")
        }
        async with world.leader("daemon.log", *FLAGS) as daemon:
            undisturbed = await work(world, "before")
            attacking = tasks.spawn(attack(world, credentials), name="attack")
            during = await work(world, "during")
            is_attacked = not attacking.done()
            await attacking
            # The daemon has only begun with the objects when the last one is written.
            after = await work(world, "after")
            used = proc.usage(daemon.pid)
            lines = daemon.log.read_text(errors="replace").splitlines()
            assert daemon.stop()

    print(json.dumps({"undisturbed": undisturbed, "during": during, "after": after}), used)
    assert used.peak_mib < MOST_MIB
    assert is_attacked
    assert max(after.values()) <= TIMES * max(undisturbed.values())
    # All Machines share the one namespace of the daemon, where they queue in order of creation.
    assert during["services_s"] <= TIMES * undisturbed["services_s"]
    assert [line for line in lines if "unexpectedly" in line or '"exception"' in line] == []
