"""A tenant that fills the cluster with all that the API server takes, beside another tenant.

A real kube-apiserver, the simulated cloud and a daemon as its users run it, with default limits.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import string
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.gardener.names import CLASS_KIND, GROUP, VERSION
from ccm.sandbox import machines
from providers.sim.balancers import PREFIX, SCHEMA
from tests import servers
from tests.benchmarks import proc
from tests.benchmarks.world import World, open_world
from tests.scenario import definitions

MOST_MIB = 256.0
"""The limit of the manifests."""

TIMES = 2.0
"""How many times as long as undisturbed other tenants may have to wait."""

SEED = 20261126
MANY_SERVICES, MANY_MACHINES, SECRETS = 2000, 200, 50
CALM_SERVICES, CALM_MACHINES = 40, 20
"""What the other tenant makes: enough to take longer than the work that is under way anyway."""

MACHINES = f"/apis/{GROUP}/{VERSION}/namespaces/{machines.NAMESPACE}"
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
    reference = {"name": f"hostile-{number}", "namespace": machines.NAMESPACE}
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": CLASS_KIND, "providerSpec": spec}
    return {**body, "metadata": {"name": f"hostile-{number}"}, "secretRef": reference}


def hostile_machine(rng: random.Random, number: int) -> dict[str, Any]:
    of = rng.choice([machines.CLASS, f"hostile-{rng.randrange(SECRETS)}", "nowhere"])
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


@dataclass(frozen=True, kw_only=True)
class Tenants:
    """Both tenants, and how far the second is."""

    world: World
    credentials: dict[str, Any]

    async def create(self, path: str, bodies: Sequence[dict[str, Any]]) -> int:
        """Create objects, several at once; how many of them the API server takes."""
        line, taken = asyncio.Semaphore(AT_ONCE), 0

        async def one(body: dict[str, Any]) -> None:
            nonlocal taken
            async with line, self.world.api.post(path, json=body) as response:
                answer = await response.text()
                assert response.status in (201, 400, 422), answer
                taken += response.status == 201

        await asyncio.gather(*map(one, bodies))
        return taken

    async def fill(self, path: str, make: Callable[[int], dict[str, Any]], count: int) -> None:
        """Create so many objects that the API server takes."""
        taken = number = 0
        while taken < count:
            numbers = range(number, number + count - taken)
            taken += await self.create(path, [make(n) for n in numbers])
            number = numbers.stop

    async def attack(self) -> None:
        """All that the hostile tenant has."""
        rng = random.Random(SEED)
        core = f"/api/v1/namespaces/{machines.NAMESPACE}"
        await self.fill(
            f"{core}/secrets", lambda n: hostile_secret(rng, n, self.credentials), SECRETS
        )
        await self.fill(f"{MACHINES}/machineclasses", partial(hostile_class, rng), SECRETS)
        await self.fill(f"{MACHINES}/machines", partial(hostile_machine, rng), MANY_MACHINES)
        await self.fill(
            "/api/v1/namespaces/hostile/services", partial(hostile_service, rng), MANY_SERVICES
        )

    async def work(self, name: str) -> float:
        """The other tenant makes Services and Machines; the seconds until all are served."""
        began = time.monotonic()
        ports = [{"port": 80}]
        services = [
            {
                "metadata": {"name": f"{name}-{n}"},
                "spec": {"type": "LoadBalancer", "ports": ports},
            }
            for n in range(CALM_SERVICES)
        ]
        spec = {"class": {"kind": CLASS_KIND, "name": machines.CLASS}}
        kind = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Machine"}
        vms = [
            {**kind, "metadata": {"name": f"{name}-{n}"}, "spec": spec}
            for n in range(CALM_MACHINES)
        ]
        assert await self.create("/api/v1/namespaces/calm/services", services) == CALM_SERVICES
        assert await self.create(f"{MACHINES}/machines", vms) == CALM_MACHINES
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(
                self._all(
                    "/api/v1/namespaces/calm/services",
                    name,
                    lambda one: bool(one["status"].get("loadBalancer", {}).get("ingress")),
                ),
                self._all(
                    f"{MACHINES}/machines",
                    name,
                    lambda one: bool(one["spec"].get("providerID")),
                ),
            )
        return time.monotonic() - began

    async def _all(self, path: str, name: str, done: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until all of a name are done; one look costs the server little."""
        while True:
            async with self.world.api.get(path) as response:
                items = (await response.json())["items"]
            ours = [one for one in items if one["metadata"]["name"].startswith(f"{name}-")]
            if ours and all(map(done, ours)):
                return
            await asyncio.sleep(0.2)


@asynccontextmanager
async def tenants(folder: Path) -> AsyncIterator[Tenants]:
    """Servers of their own, with namespaces, definitions and a class that is good."""
    servers.require_assets()
    async with open_world(folder) as world:
        await definitions.define(world.api)
        for name in ("calm", "hostile"):
            space = {"metadata": {"name": name}}
            async with world.api.post("/api/v1/namespaces", json=space) as response:
                assert response.status == 201
        config = yaml.safe_load(Path(world.cloud_config).read_text())
        for one in machines.simulated(config["token"]):
            plural = "secrets" if one["kind"] == "Secret" else "machineclasses"
            where = f"/api/v1/namespaces/{machines.NAMESPACE}" if plural == "secrets" else MACHINES
            version = "v1" if plural == "secrets" else f"{GROUP}/{VERSION}"
            body: dict[str, Any] = {"apiVersion": version, **one}
            async with world.api.post(f"{where}/{plural}", json=body) as response:
                assert response.status == 201, await response.text()
        data = {
            key: base64.b64encode(str(config[key]).encode()).decode() for key in ("url", "token")
        }
        yield Tenants(world=world, credentials=data)


async def test_another_tenant_waits_twice_as_long_at_most_and_the_daemon_stays_small(
    tmp_path: Path,
) -> None:
    async with tenants(tmp_path) as both, both.world.leader("daemon.log", *FLAGS) as daemon:
        undisturbed_s = await both.work("before")
        at_rest_mib = proc.usage(daemon.pid).peak_mib
        # The daemon has only begun with it when all is there.
        await both.attack()
        done = len(daemon.lines("load balancer ensured"))
        disturbed_s = await both.work("after")
        used = proc.usage(daemon.pid)
        figures = {
            "undisturbed_s": round(undisturbed_s, 1),
            "disturbed_s": round(disturbed_s, 1),
            "done_before": done,
            "at_rest_mib": round(at_rest_mib, 1),
            "peak_mib": round(used.peak_mib, 1),
            "rss_mib": round(used.rss_mib, 1),
            "cpu_s": round(used.cpu_s, 1),
        }
        print(json.dumps(figures))
        lines = daemon.log.read_text(errors="replace").splitlines()
        said = daemon.stop()

    assert used.peak_mib < MOST_MIB, figures
    assert disturbed_s <= TIMES * undisturbed_s, figures
    assert [line for line in lines if "unexpectedly" in line or '"exception"' in line] == []
    assert said
