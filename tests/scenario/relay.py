"""Two replicas that take turns under load, and the two logs that show who wrote when.

Each replica has a user of its own at the API server, whose audit log names it, and a proxy of its
own to the cloud. From the audit log's writes of the Lease follows who held it when: from the
request that took it until the one that gave it back, or until its last renewal had run out.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from ccm.sandbox import realserver
from ccm.sandbox.realserver import ADMIN_GROUP, RealServer, User
from tests.faults import FaultProxy, Match
from tests.scenario import harness, load, nodes
from tests.scenario.harness import Daemon, Environment, wait_for

USERS = tuple(
    User(name=f"replica-{letter}", token=f"token-of-{letter}", groups=(ADMIN_GROUP,))
    for letter in "ab"
)

FLAGS: Mapping[str, str] = {
    "controllers": "*",
    "configure-cloud-routes": "false",
    "concurrent-service-syncs": "4",
    **harness.SHORT_LEASE,
    # The load is far above what the defaults allow; a queue of events would be written late.
    "kube-api-qps": "1000",
    "kube-api-burst": "1000",
}

CLOUD_LATENCY_S = 0.03

_NODES_KEPT = 40
_SERVICES_KEPT = 6
_NODE_PAUSE_S = 0.06
_NODES_PER_SERVICE = 6
_HANDOVER_S = 60.0
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(slots=True, kw_only=True)
class Replica:
    """One of the two places where a daemon runs, again and again."""

    user: User
    proxy: FaultProxy
    kubeconfig: Path
    cloud_config: Path
    daemon: Daemon | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A request that changes something, from the audit log."""

    user: str
    resource: str
    received: datetime
    status: int
    path: str
    body: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class Term:
    """A time in which a process held the Lease."""

    user: str
    identity: str
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A signal, and who should work afterwards."""

    number: signal.Signals
    at: datetime
    successor: str


@dataclass(slots=True, kw_only=True)
class Load:
    """Nodes and Services that come and go all the time."""

    env: Environment
    nodes: collections.deque[str] = field(default_factory=collections.deque)
    services: collections.deque[str] = field(default_factory=collections.deque)
    _machines: dict[str, str] = field(default_factory=dict)

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop."""
        for number in itertools.count():
            if stop.is_set():
                return
            await self._one_more(number)
            await asyncio.sleep(_NODE_PAUSE_S)

    async def _one_more(self, number: int) -> None:
        name = f"node-{number}"
        self._machines[name] = (await self.env.node(name)).id
        self.nodes.append(name)
        if len(self.nodes) > _NODES_KEPT and await self._is_done(self.nodes[0]):
            oldest = self.nodes.popleft()
            await self.env.cluster.delete(f"{harness.NODES}/{oldest}")
            self.env.cloud.world.delete(self._machines.pop(oldest))
        if number % _NODES_PER_SERVICE == 0:
            await self._one_more_service(f"service-{number}")

    async def _one_more_service(self, name: str) -> None:
        self.services.append(name)
        await load.create(self.env, load.web(name))
        if len(self.services) > _SERVICES_KEPT:
            await load.delete(self.env, self.services.popleft())

    async def _is_done(self, name: str) -> bool:
        node = await self.env.cluster.node(name)
        return node is not None and not nodes.missing(node)


class Relay:
    """The two replicas.

    Args:
        env: where they run; its server writes an audit log.
        replicas: none of them runs yet.
    """

    def __init__(self, env: Environment, replicas: Sequence[Replica]) -> None:
        self.env = env
        self.replicas = collections.deque(replicas)
        """The leader first."""
        self.load = Load(env=env)
        self.handovers: list[Handover] = []
        self._to_wall_s = time.time() - asyncio.get_running_loop().time()
        self._chance = random.Random(7)

    async def begin(self) -> None:
        """Start both; one leads, the other stands by."""
        leader, standby = self.replicas
        daemon = await self._start(leader)
        await daemon.says("became leader", within_s=_HANDOVER_S)
        await self._stand_by(standby)

    async def hand_over(self, number: signal.Signals) -> None:
        """Signal the leader, see the other one work, and let a new standby come."""
        await asyncio.sleep(self._chance.random() * harness.RETRY_S)
        old, new = self.replicas
        assert old.daemon is not None
        assert new.daemon is not None
        at = datetime.now().astimezone()
        old.daemon.signal(number)
        await new.daemon.says("became leader", within_s=_HANDOVER_S)
        code = await old.daemon.ended(within_s=_HANDOVER_S)
        assert code == (0 if number == signal.SIGTERM else -number)
        await self.env.cluster.initialised(self.load.nodes[-1], within_s=_HANDOVER_S)
        self.handovers.append(Handover(number=number, at=at, successor=new.user.name))
        self._forget(old.daemon)
        self.replicas.rotate(-1)
        await self._stand_by(old)

    async def settled(self) -> None:
        """Wait until all that the load left has been worked off."""
        await self.env.cluster.initialised(*self.load.nodes, within_s=_HANDOVER_S)

        async def served() -> bool:
            found = await self.env.cluster.items(load.SERVICES)
            ours = [one for one in found if one["metadata"]["name"].startswith("service-")]
            return len(ours) == len(self.load.services) and all(
                one["status"]["loadBalancer"].get("ingress") for one in ours
            )

        await wait_for(served, "every Service has its address", within_s=_HANDOVER_S)

    def cloud_writes(self) -> Iterator[tuple[str, datetime, str]]:
        """Who changed what in the cloud, and when it came there."""
        for replica in self.replicas:
            for one in replica.proxy.requests(Match(write=True)):
                at = datetime.fromtimestamp(one.started_s + self._to_wall_s).astimezone()
                yield replica.user.name, at, f"{one.method} {one.path}"

    async def _stand_by(self, replica: Replica) -> None:
        daemon = await self._start(replica)
        await daemon.says("new leader elected", within_s=_HANDOVER_S)

    async def _start(self, replica: Replica) -> Daemon:
        replica.daemon = await self.env.start(
            flags={**FLAGS, "cloud-config": str(replica.cloud_config)},
            kubeconfig=replica.kubeconfig,
        )
        return replica.daemon

    def _forget(self, daemon: Daemon) -> None:
        """What has ended has been judged and needs no room any more."""
        assert daemon.surprises() == []
        self.env.daemons.remove(daemon)


@contextlib.asynccontextmanager
async def open_relay(server: RealServer, folder: Path) -> AsyncIterator[Relay]:
    """Both replicas before a server that knows `USERS` and writes an audit log."""
    async with (
        harness.open_environment(server, folder) as env,
        contextlib.AsyncExitStack() as exits,
    ):
        env.cloud.change_settings(
            type(env.cloud.settings)(transition_s=0.0, latency_s=CLOUD_LATENCY_S)
        )
        replicas = []
        for user in USERS:
            proxy = await exits.enter_async_context(FaultProxy(env.cloud_proxy.url))
            kubeconfig = folder / f"{user.name}.kubeconfig"
            realserver.write_kubeconfig(
                kubeconfig, url=server.url, token=user.token, ca_file=server.ca_file
            )
            cloud_config = folder / f"{user.name}.cloud.yaml"
            config = {"url": proxy.url, "token": env.cloud.token, "timeout": "5s"}
            cloud_config.write_text(yaml.safe_dump(config))
            replicas.append(
                Replica(user=user, proxy=proxy, kubeconfig=kubeconfig, cloud_config=cloud_config)
            )
        yield Relay(env, replicas)


def audited(log: Path) -> list[Write]:
    """The writes of the replicas, in order of arrival."""
    known = {user.name for user in USERS}
    found = []
    with log.open() as lines:
        for line in lines:
            entry = json.loads(line)
            user = entry["user"]["username"]
            if user in known and entry["verb"] in _WRITES and entry["stage"] != "Panic":
                found.append(_write(user, entry))
    return sorted(found, key=lambda write: write.received)


def terms(writes: Iterable[Write]) -> list[Term]:
    """Who held the Lease when, from its writes in order of arrival."""
    found: list[Term] = []
    last: dict[str, Term] = {}
    for write in writes:
        if write.resource != "leases" or write.status not in (200, 201):
            continue
        spec = write.body["spec"]
        identity = spec.get("holderIdentity") or ""
        if not identity:
            last[write.user].end = write.received
            continue
        until = _moment(spec["renewTime"]) + timedelta(seconds=spec["leaseDurationSeconds"])
        term = last.get(write.user)
        if term is not None and term.identity == identity:
            term.end = until
        else:
            term = Term(user=write.user, identity=identity, start=write.received, end=until)
            last[write.user] = term
            found.append(term)
    return found


def durations(
    handovers: Iterable[Handover], writes: Sequence[Write], number: signal.Signals
) -> list[float]:
    """Seconds from each such signal to the successor's first write."""
    work = [write for write in writes if write.resource not in ("leases", "events")]
    return [
        min(
            (write.received - one.at).total_seconds()
            for write in work
            if write.user == one.successor and write.received > one.at
        )
        for one in handovers
        if one.number == number
    ]


def _write(user: str, entry: Mapping[str, Any]) -> Write:
    return Write(
        user=user,
        resource=entry.get("objectRef", {}).get("resource", ""),
        received=_moment(entry["requestReceivedTimestamp"]),
        status=entry.get("responseStatus", {}).get("code", 0),
        path=f"{entry['verb']} {entry['requestURI']}",
        body=entry.get("requestObject") or {},
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
