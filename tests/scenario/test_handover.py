"""Two replicas take turns under load: each writes only while it holds the Lease.

Each replica has its own proxies to the API server and the cloud. Its writes of the Lease show when
it held the Lease: from the acquiring request to the release, or to the expiry of the last renewal.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import random
import signal
import statistics
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from providers.sim import state
from tests import servers
from tests.faults import Exchange, FaultProxy, Match
from tests.scenario import harness, load
from tests.scenario.harness import Daemon, Environment, missing, wait_for

FLAGS: Mapping[str, str] = {
    "controllers": "*",
    "configure-cloud-routes": "false",
    "concurrent-service-syncs": "4",
    **harness.SHORT_LEASE,
    # The load far exceeds the default limits; a queue of events would be written late.
    "kube-api-qps": "1000",
    "kube-api-burst": "1000",
}
NODES_KEPT, SERVICES_KEPT, NODES_PER_SERVICE = 40, 6, 6
NODE_PAUSE_S = 0.06
WITHIN_S = 60.0


@dataclass(slots=True, kw_only=True)
class Replica:
    """One of two replicas; its daemon is restarted again and again."""

    name: str
    api: FaultProxy
    cloud: FaultProxy
    cloud_config: Path
    daemon: Daemon | None = None

    def writes(self) -> list[Exchange]:
        """Its writes, without those of the Lease."""
        found = [*self.api.requests(Match(write=True)), *self.cloud.requests(Match(write=True))]
        return [one for one in found if "/leases" not in one.path]

    def terms(self) -> Iterator[tuple[float, float]]:
        """When its processes held the Lease, each from its start to its end."""
        term: tuple[str, float, float] = ("", 0.0, 0.0)
        for one in self.api.requests(harness.LEASE_WRITE):
            if one.upstream_status not in (200, 201):
                continue
            spec = one.json()["spec"]
            holder = spec.get("holderIdentity") or ""
            if not holder:
                yield term[1], one.started_s
                term = ("", 0.0, 0.0)
                continue
            if holder != term[0]:
                if term[0]:
                    yield term[1:]
                term = (holder, one.started_s, 0.0)
            term = (holder, term[1], one.started_s + spec["leaseDurationSeconds"])
        if term[0]:
            yield term[1:]


@dataclass(slots=True, kw_only=True)
class Load:
    """Nodes and Services that come and go all the time."""

    env: Environment
    nodes: collections.deque[str] = field(default_factory=collections.deque)
    services: collections.deque[str] = field(default_factory=collections.deque)
    _machines: dict[str, str] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Apply load until the event is set."""
        for number in itertools.count():
            if stop.is_set():
                return
            name = f"node-{number}"
            self._machines[name] = (await self.env.node(name)).id
            self.nodes.append(name)
            if len(self.nodes) > NODES_KEPT and await self._is_done(self.nodes[0]):
                oldest = self.nodes.popleft()
                await self.env.cluster.delete(f"{harness.NODES}/{oldest}")
                self.env.cloud.world.delete(self._machines.pop(oldest))
            if number % NODES_PER_SERVICE == 0:
                self.services.append(f"service-{number}")
                await load.create(self.env, load.web(self.services[-1]))
                if len(self.services) > SERVICES_KEPT:
                    await load.delete(self.env, self.services.popleft())
            await asyncio.sleep(NODE_PAUSE_S)

    async def _is_done(self, name: str) -> bool:
        node = await self.env.cluster.node(name)
        return node is not None and not missing(node)

    async def settled(self) -> None:
        """Wait until all that it left has been worked off."""
        await self.env.cluster.initialised(*self.nodes, within_s=WITHIN_S)

        async def served() -> bool:
            found = await load.services_of_people(self.env)
            shown = [name for name, one in found.items() if load.ingress(one)]
            return {*shown} == {*self.services} == {*found}

        await wait_for(served, "every Service has its address", within_s=WITHIN_S)


@pytest_asyncio.fixture
async def replicas(env: Environment) -> AsyncIterator[list[Replica]]:
    """Two, of which none runs yet, before a cloud that takes its time."""
    env.cloud.change_settings(state.Settings(transition_s=0.0, latency_s=0.03))
    async with contextlib.AsyncExitStack() as exits:
        found = []
        for name in "ab":
            cloud = await exits.enter_async_context(FaultProxy(env.cloud_proxy.url))
            file = env.folder / f"{name}.cloud.yaml"
            config = {"url": cloud.url, "token": env.cloud.token, "timeout": "5s"}
            file.write_text(yaml.safe_dump(config))
            api = await env.new_proxy()
            found.append(Replica(name=name, api=api, cloud=cloud, cloud_config=file))
        yield found


async def start(env: Environment, replica: Replica, said: str) -> Daemon:
    flags = {**FLAGS, "cloud-config": str(replica.cloud_config)}
    replica.daemon = await env.start(flags=flags, proxy=replica.api)
    await replica.daemon.says(said, within_s=WITHIN_S)
    return replica.daemon


@pytest.mark.row("daemon-stop-05")
@servers.only_real
@pytest.mark.parametrize(
    ("stops", "kills"),
    [
        pytest.param(2, 1, marks=pytest.mark.timeout(300)),
        pytest.param(50, 20, marks=[pytest.mark.soak, pytest.mark.timeout(3000)]),
    ],
)
async def test_replicas_write_only_while_they_hold_the_lease(
    env: Environment, replicas: list[Replica], stops: int, kills: int
) -> None:
    """At the API server and in the cloud, however the leader ends; no work is lost."""
    load, end, chance = Load(env=env), asyncio.Event(), random.Random(7)
    busy = asyncio.create_task(load.run(end))
    await start(env, replicas[0], "became leader")
    await start(env, replicas[1], "new leader elected")
    signals = [signal.SIGTERM] * stops + [signal.SIGKILL] * kills
    handovers: list[tuple[signal.Signals, float, Replica]] = []
    for (old, new), number in zip(itertools.cycle([replicas, replicas[::-1]]), signals):
        await asyncio.sleep(chance.random() * harness.RETRY_S)
        assert old.daemon is not None
        assert new.daemon is not None
        handovers.append((number, asyncio.get_running_loop().time(), new))
        old.daemon.signal(number)
        await new.daemon.says("became leader", within_s=WITHIN_S)
        code = await old.daemon.ended(within_s=WITHIN_S)
        assert code == (0 if number == signal.SIGTERM else -number)
        await env.cluster.initialised(load.nodes[-1], within_s=WITHIN_S)
        assert old.daemon.surprises() == []
        env.daemons.remove(old.daemon)  # it has been judged and needs no room any more
        await start(env, old, "new leader elected")
    end.set()
    await busy
    await load.settled()

    terms = sorted(term for one in replicas for term in one.terms())
    assert len(terms) == stops + kills + 1
    for earlier, later in itertools.pairwise(terms):
        assert earlier[1] < later[0], (earlier, later)
    for one in replicas:
        ours, acts = list(one.terms()), one.writes()
        assert {act.path.startswith("/v1/") for act in acts} == {True, False}  # of both
        late = [act for act in acts if not any(a < act.started_s < b for a, b in ours)]
        assert [str(act) for act in late] == []
    for number in {*signals}:
        took = [
            min(act.started_s for act in new.writes() if act.started_s > at) - at
            for sent, at, new in handovers
            if sent == number
        ]
        print(
            f"{number.name}: {len(took)} hand-overs, median {statistics.median(took):.3f} s, "
            f"worst {max(took):.3f} s from the signal to the successor's first write"
        )
