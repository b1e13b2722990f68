"""A small cluster and its cloud in memory, for a plan and then for the daemon's controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from ccm.app import options, provider
from ccm.app.controllers import ControllerRunner
from ccm.app.election import load_migration
from ccm.app.health import DaemonState
from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Cloud, default_load_balancer_name
from ccm.cloud.operation import ProviderCall
from ccm.kube.resources import CONFIG_MAPS, NODES, SERVICES
from ccm.model import ConfigMap, Node, NodeAddress, NodeCondition, Service, names
from ccm.planning import forecast
from ccm.planning.changes import BALANCER, MEMBERS, ROUTE, Forecast, PlannedChange
from ccm.planning.cloud_client import CloudChange, Ledger
from ccm.planning.forecast import FakeTracker
from ccm.planning.timeloop import FastForwardLoop
from ccm.runtime import deletions
from ccm.testing import builders
from ccm.testing.apiserver import patches
from ccm.testing.clock import VirtualTimeLoop
from tests.contract.memory import MemoryInstance, MemoryNetworkApi, open_memory_network

T = TypeVar("T")

F = names.FINALIZER_LOAD_BALANCER
RANGE = "10.244.0.0/16"
MOMENT_S = 0.05
FLAGS = ("--cloud-provider=memory", f"--cluster-cidr={RANGE}")
OWNER = "cloud-controller-manager"


@dataclass
class Town:
    """A cluster and its cloud.

    Attributes:
        flags: flags of the daemon.
        blind: whether the cloud lists no load balancers.
        listing: whether it lists instances.
        record: content of the deletion record.
        malformed: keys of Services that cannot be decoded.
    """

    flags: Sequence[str] = ()
    blind: bool = False
    listing: bool = False
    record: Mapping[str, str] | None = None
    malformed: Sequence[str] = ()
    # A plan cannot know which members a cloud refuses.
    api: MemoryNetworkApi = field(default_factory=lambda: MemoryNetworkApi(any_member=True))
    nodes: dict[str, Node] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)

    # --- content ----------------------------------------------------------------------------

    def node(self, name: str, *, cidr: str = "", **facts: Any) -> MemoryInstance:
        """A settled node, with its machine and its route; `facts` as `builders.node` takes them."""
        machine = self.api.create(name)
        labels = {
            names.LABEL_INSTANCE_TYPE: "small",
            names.LABEL_ZONE: f"zone-{machine.number % 3}",
            names.LABEL_REGION: "region",
        }
        beta = {old: labels[new] for old, new in names.LABEL_PAIRS if new in labels}
        given = {
            "provider_id": f"memory://{machine.id}",
            "labels": {**labels, **beta},
            "addresses": [
                NodeAddress(type="InternalIP", address=machine.ip),
                NodeAddress(type="Hostname", address=name),
            ],
            "pod_cidrs": [cidr] if cidr else [],
        }
        made = builders.node(name, **{**given, **facts})
        self.nodes[name] = made
        if made.spec.pod_cidrs:
            self.conditions(name, "NetworkUnavailable", "False", "RouteCreated")
        for each in made.spec.pod_cidrs or ():
            self.route(each, name)
        return machine

    def conditions(self, name: str, kind: str, status: str, reason: str = "") -> None:
        """Write a condition of a node."""
        node = self.nodes[name]
        others = [one for one in node.status.conditions or () if one.type != kind]
        written = NodeCondition(type=kind, status=status, reason=reason)
        self.change(
            NODES, name, {"status": {"conditions": [*map(_plain, others), _plain(written)]}}
        )

    def silent(self, name: str) -> None:
        """Mark a node as unreachable."""
        self.conditions(name, names.CONDITION_READY, names.STATUS_UNKNOWN)

    def gone(self, name: str) -> MemoryInstance:
        """Delete the instance of a node, and mark the node as unreachable."""
        machine = next(one for one in self.api.instances.values() if one.name == name)
        del self.api.instances[machine.id]
        self.silent(name)
        return machine

    def returns(self, machine: MemoryInstance) -> None:
        """Restore an instance in the cloud."""
        self.api.instances[machine.id] = machine

    def service(self, name: str, **facts: Any) -> Service:
        """Add a Service without a load balancer."""
        self.services[f"default/{name}"] = made = builders.service(name, **facts)
        return made

    def served(self, name: str, **facts: Any) -> Service:
        """Add a Service with finalizer, load balancer and status."""
        made = self.service(name, finalizers=[F], **facts)
        run(self._serve(made))
        ip = self.api.balancers[default_load_balancer_name(made)].ip
        status = {"loadBalancer": {"ingress": [{"ip": ip, "ipMode": "VIP"}]}}
        self.change(SERVICES, made.key, {"status": status})
        return self.services[made.key]

    async def _serve(self, service: Service) -> None:
        async with open_memory_network(self.api) as cloud:
            assert cloud.load_balancer is not None
            members = sorted(self.nodes.values(), key=lambda node: node.name)
            await cloud.load_balancer.ensure_load_balancer("kubernetes", service, members)

    def route(self, cidr: str, target: str) -> None:
        """Add a route in the cloud."""
        run(self.api.put_route(self.api.token, "kubernetes", cidr, target))

    def change(self, kind: Any, key: str, patch: Mapping[str, Any]) -> None:
        """Change an object as another client; lists are replaced."""
        objects: dict[str, Any] = self.nodes if kind is NODES else self.services
        body = patches.merge(msgspec.to_builtins(objects[key]), patch)
        objects[key] = msgspec.convert(body, kind.type)

    # --- results ----------------------------------------------------------------------------

    def plan(
        self,
        *,
        wait: bool = False,
        really: bool = False,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> Forecast:
        """Return the plan, and check that it changed nothing in the cloud.

        Args:
            wait: whether to wait for confirmations.
            really: whether to run in real time that skips idle waits.
            meanwhile: action run shortly after the start.
        """
        writes = self.api.writes

        async def find() -> Forecast:
            asyncio.get_running_loop().call_later(MOMENT_S, meanwhile)
            async with open_memory_network(self.api) as cloud:
                client = self._cluster().named("reader")
                return await forecast.forecast(self._options, client, self._seen(cloud), wait=wait)

        found = run(find(), loop=FastForwardLoop if really else VirtualTimeLoop)
        assert self.api.writes == writes
        return found

    def live(self) -> Forecast:
        """Return what the daemon does in the period of the plan."""

        async def work() -> Forecast:
            async with open_memory_network(self.api) as cloud:
                return await self._lived(self._seen(cloud))

        return run(work())

    async def _lived(self, cloud: Cloud) -> Forecast:
        cluster, ledger, events = self._cluster(), Ledger(), forecast._EventCollector()
        present = set(self.api.balancers)

        handle = provider.make_handle(self._options, cloud)
        ask = handle._call_provider

        async def noting(
            cloud: Cloud, operation: ProviderCall, method: Callable[..., Any]
        ) -> object:
            answer = await ask(cloud, operation, method)
            if operation.change:
                service = operation.arguments.get("service")
                listed = isinstance(service, Service) and _balancer(service) in present
                made = CloudChange(
                    verb=operation.verb,
                    arguments=operation.arguments,
                    at_s=clock.monotonic(),
                    listed=listed,
                )
                ledger.changes.append(made)
            return answer

        vars(handle)["_call_provider"] = noting
        plan = load_migration(self._options)
        running = ControllerRunner(self._options, cluster, events, DaemonState(), plan)
        work = spawn(running.run(handle, election=None), name="controllers")
        await asyncio.sleep(forecast.horizon_s(self._options))
        found = Forecast(changes=forecast.collect_changes(cluster, ledger, lambda _: 0))
        found = forecast._split_events(
            found, events, forecast._blocked_deletions(self._options, cluster)
        )
        await cancel_and_join(work)
        return found

    @property
    def _options(self) -> options.Options:
        return options.parse([*FLAGS, *self.flags])

    def _cluster(self) -> FakeTracker:
        cluster = FakeTracker()
        cluster.load(NODES, self.nodes)
        cluster.load(SERVICES, self.services, malformed=self.malformed)
        if self.record is not None:
            meta = {"name": deletions.CONFIG_MAP_NAME, "namespace": "kube-system", "uid": "record"}
            record = msgspec.convert({"metadata": meta, "data": dict(self.record)}, ConfigMap)
            cluster.load(CONFIG_MAPS, {record.key: record})
        return cluster

    def _seen(self, cloud: Cloud) -> Cloud:
        """Return the capabilities of the provider."""
        if self.blind:
            assert cloud.load_balancer is not None
            cloud = replace(cloud, load_balancer=Blind(cloud.load_balancer))
        return replace(cloud, inventory=cloud.instances) if self.listing else cloud  # type: ignore[arg-type]


class Blind:
    """The load balancers of a cloud that cannot list them."""

    def __init__(self, real: Any) -> None:
        self.get_load_balancer_name = real.get_load_balancer_name
        self.get_load_balancer = real.get_load_balancer
        self.ensure_load_balancer = real.ensure_load_balancer
        self.update_load_balancer = real.update_load_balancer
        self.ensure_load_balancer_deleted = real.ensure_load_balancer_deleted


Comparable = frozenset[tuple[object, ...]]


def actions(found: Forecast) -> Comparable:
    """Return the comparable changes.

    A plan cannot know the result of an ensure call, whether the call changed anything, and the
    target that the cloud reports for a new route.
    """
    return frozenset(_told(one) for one in found.changes if not _is_answer(one, found.changes))


def holds(found: Forecast) -> Comparable:
    """Return the blocked deletions with their messages."""
    return frozenset((one.subject, one.message) for one in found.blocked)


def _told(one: PlannedChange) -> tuple[object, ...]:
    if one.what in (BALANCER, ROUTE):
        kind = "ensure" if one.what == BALANCER and one.new is not None else one.action
        return (one.subject, one.what, kind)
    return (one.subject, one.what, one.action, one.old, one.new)


def _is_answer(one: PlannedChange, among: Sequence[PlannedChange]) -> bool:
    ensured = any(
        each.subject == one.subject and each.what == BALANCER and each.new is not None
        for each in among
    )
    return ensured and one.what in (MEMBERS, "status.loadBalancer.ingress")


def run(
    work: Coroutine[Any, Any, T], *, loop: type[asyncio.AbstractEventLoop] = VirtualTimeLoop
) -> T:
    """Run in virtual time, or on another kind of loop."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)


def _balancer(service: Service) -> str:
    return default_load_balancer_name(service)


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
