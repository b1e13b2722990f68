"""Scenarios of MachineDeployments of Kubermatic's API, and the kubelets of their machines.

Kubelets are simulated, in a real cloud too: a node registers once the provider ID of its machine is
stored. So a scenario shows that servers are created, found and deleted, not that images boot.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ccm.kubermatic import names
from ccm.model.names import STATUS_TRUE
from tests.e2e.provisioning import templates
from tests.e2e.provisioning.targets import Site, Target
from tests.scenario import kubermatic
from tests.scenario.harness import NODES, Daemon, conditions
from tests.scenario.kubermatic import DEPLOYMENTS, MACHINES, SETS, phase

T = TypeVar("T")
Object = dict[str, Any]

VERSIONS = ("1.33.11", "1.34.7", "1.35.4", "1.36.2")
"""Versions of the kubelet."""

UPDATE = {"template": {"metadata": {"labels": {"testUpdate": "true"}}}}
"""Changes the template."""

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJxkOFFWfiDHJ7hNnyh3N4Nd8Zqs0N0KxGLjh3rQfRkP e2e"

_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One MachineDeployment.

    Attributes:
        name: of the scenario.
        system: operating system.
        version: of the kubelet.
        run: the scenario itself.
        variant: of the test data.
        alone: it stops the daemon, so nothing else may run.
    """

    name: str
    system: str
    version: str
    run: Callable[[Run], Awaitable[None]]
    variant: str = ""
    alone: bool = False


def matrix(target: Target, wanted: str = "*") -> list[Scenario]:
    """All scenarios of a provider whose name matches a pattern."""
    newest, usual = VERSIONS[-1], target.systems[0]
    found = [
        Scenario(
            name=f"{system}-v{version}", system=system, version=version, run=create_update_delete
        )
        for system in target.systems
        for version in VERSIONS
    ]
    found.append(Scenario(name="unknown-os", system="beos", version=newest, run=create_fails))
    if target.unsupported is not None:
        system, variant = target.unsupported
        found.append(
            Scenario(
                name="unsupported-os",
                system=system,
                version=newest,
                run=create_fails,
                variant=variant,
            )
        )
    found.append(
        Scenario(name="migrateUID", system=usual, version=newest, run=migrate_uid, alone=True)
    )
    return [one for one in found if fnmatch.fnmatchcase(one.name, wanted)]


@dataclass(kw_only=True)
class Snapshot:
    """The objects of all scenarios."""

    deployments: list[Object] = field(default_factory=list)
    sets: list[Object] = field(default_factory=list)
    machines: list[Object] = field(default_factory=list)
    nodes: Mapping[str, Object] = field(default_factory=dict)


class Cluster:
    """The cluster of all scenarios, its daemon, and the kubelets of its machines."""

    def __init__(self, target: Target, site: Site, identifier: str) -> None:
        self.target, self.site, self.identifier = target, site, identifier
        self.api = site.env.cluster
        self.seen = Snapshot()
        self.daemon: Daemon | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        """Start a daemon; the last one has ended."""
        self.daemon = await self.site.env.start_leading(**self.site.how)

    async def stop(self) -> None:
        """Stop the daemon as an administrator does, unless a failed scenario left none."""
        assert self.daemon is not None
        if self.daemon.exit_code is None:
            assert await self.daemon.stop() == 0

    @contextlib.asynccontextmanager
    async def observed(self) -> AsyncIterator[None]:
        """Follow the objects, and let the kubelets register."""
        watch = asyncio.create_task(self._observe())
        try:
            yield
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def until(self, what: str, condition: Callable[[Snapshot], T]) -> T:
        """Wait until a condition of the objects is true; its value."""
        try:
            async with asyncio.timeout(self.target.within_s):
                while not (found := condition(self.seen)):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise AssertionError(f"not within {self.target.within_s} s: {what}") from error
        return found

    async def clean_up(self) -> None:
        """Delete all that a failed scenario left, so that no server goes on costing money."""
        assert self.daemon is not None
        if self.daemon.exit_code is not None:
            await self.start()
        for one in await self.api.items(DEPLOYMENTS):
            await self.api.delete(f"{DEPLOYMENTS}/{one['metadata']['name']}")
        await self.until("all is gone", lambda seen: not (seen.deployments or seen.machines))

    async def _observe(self) -> None:
        while True:
            nodes = await self.api.items(NODES)
            self.seen = Snapshot(
                deployments=await self.api.items(DEPLOYMENTS),
                sets=await self.api.items(SETS),
                machines=await self.api.items(MACHINES),
                nodes={one["metadata"]["name"]: one for one in nodes},
            )
            for machine in self.seen.machines:
                name = (machine.get("status", {}).get("nodeRef") or {}).get("name")
                of_vm = machine["spec"].get("providerID")
                if name and of_vm and name not in self.seen.nodes and not _is_going(machine):
                    await self.api.register(name, ready=STATUS_TRUE, providerID=of_vm, taints=[])
            self._changed.set()
            await asyncio.sleep(_POLL_S)


class Run:
    """One scenario in a cluster."""

    def __init__(self, cluster: Cluster, scenario: Scenario) -> None:
        self.cluster, self.scenario = cluster, scenario
        target = cluster.target
        whole = f"{scenario.name}-{target.package}-{cluster.identifier}"
        self.name = whole.lower().replace(" ", "-").replace(".", "-")
        self.path = f"{DEPLOYMENTS}/{self.name}"

    async def run(self) -> None:
        """The whole scenario."""
        await self.scenario.run(self)

    async def create(self) -> None:
        """The MachineDeployment, and its user data."""
        scenario = self.scenario
        values = {
            **self.cluster.site.values,
            "MACHINE_NAME": self.name,
            "OS_NAME": scenario.system,
            "KUBERNETES_VERSION": scenario.version,
            "YOUR_PUBLIC_KEY": PUBLIC_KEY,
        }
        body = templates.deployment(self.cluster.target.package, scenario.variant, values)
        await kubermatic.write_user_data(self.cluster.api, self.name)
        await self.cluster.api.create(DEPLOYMENTS, body)

    async def edit(self, spec: Mapping[str, Any]) -> None:
        await self.cluster.api.patch(self.path, {"spec": spec}, kind="merge")

    async def until(self, what: str, condition: Callable[[Snapshot], T]) -> T:
        """Wait; the condition sees the objects of this scenario, and all nodes."""
        try:
            return await self.cluster.until(what, lambda seen: condition(self._own(seen)))
        except AssertionError as error:
            machines = self._own(self.cluster.seen).machines
            found = {one["metadata"]["name"]: _status(one) for one in machines}
            raise AssertionError(f"{error}; machines: {found}") from error

    async def remove(self) -> None:
        """Scale to 0, then delete."""
        await self.edit({"replicas": 0})
        await self.until("no machine at 0 replicas", lambda seen: not seen.machines)
        await self.cluster.api.delete(self.path)
        await self.until("all is gone", lambda seen: not (seen.deployments or seen.sets))

    def _own(self, seen: Snapshot) -> Snapshot:
        return Snapshot(
            deployments=[one for one in seen.deployments if one["metadata"]["name"] == self.name],
            sets=[one for one in seen.sets if _owner(one) == self.name],
            machines=[
                one for one in seen.machines if one["metadata"]["labels"]["name"] == self.name
            ],
            nodes=seen.nodes,
        )


# --- the scenarios --------------------------------------------------------------------------------


async def create_update_delete(run: Run) -> None:
    """A node, another node after a change of the template, and nothing."""
    await run.create()
    first = await run.until("the machine is a node", only_node)
    await kubermatic.write_user_data(run.cluster.api, run.name, 2)
    await run.edit(UPDATE)
    name = first["metadata"]["name"]

    def replaced(seen: Snapshot) -> Object:
        return {} if name in seen.nodes else _second_node(seen)

    second = await run.until("another machine is the node", replaced)
    assert _owner(first) != _owner(second)
    await run.remove()


async def create_fails(run: Run) -> None:
    """The machine says why it has no server."""
    await run.create()

    def refusal(seen: Snapshot) -> Object:
        return next((one for one in seen.machines if _status(one).get("errorReason")), {})

    refused = await run.until("the machine has an error", refusal)
    assert _status(refused)["errorReason"] == "InvalidConfiguration"
    assert "operatingSystem" in _status(refused)["errorMessage"]
    assert "providerID" not in refused["spec"]
    await run.remove()


async def migrate_uid(run: Run) -> None:
    """The Machine is restored from a backup, with a new UID, and keeps its server."""
    await run.create()
    before = await run.until("the machine is a node", only_node)
    held = dict(run.cluster.site.held())
    api, path = run.cluster.api, f"{MACHINES}/{before['metadata']['name']}"
    await run.cluster.stop()
    await api.patch(path, {"metadata": {"finalizers": None}}, kind="merge")
    await api.delete(path)
    kept = ("name", "labels", "finalizers", "ownerReferences")
    metadata = {key: before["metadata"][key] for key in kept}
    metadata["annotations"] = {names.ANNOTATION_FORMER_UID: before["metadata"]["uid"]}
    kind = {"apiVersion": f"{names.GROUP}/{names.VERSION}", "kind": "Machine"}
    await api.create(MACHINES, {**kind, "metadata": metadata, "spec": before["spec"]})
    await run.cluster.start()

    def restored(seen: Snapshot) -> Object:
        machine = only_node(seen)
        notes = machine.get("metadata", {}).get("annotations") or {}
        return {} if names.ANNOTATION_FORMER_UID in notes else machine

    after = await run.until("the restored machine is a node", restored)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["providerID"] == before["spec"]["providerID"]
    assert dict(run.cluster.site.held()) == held
    await run.remove()


def only_node(seen: Snapshot) -> Object:
    """The only machine, if its node is ready; else empty."""
    if len(seen.machines) != 1 or phase(seen.machines[0]) != "Running":
        return {}
    (machine,) = seen.machines
    node = seen.nodes.get(_status(machine)["nodeRef"]["name"])
    if node is None or _is_going(machine):
        return {}
    is_own = node["metadata"]["labels"].get(names.LABEL_OWNED_BY) == machine["metadata"]["uid"]
    states = conditions(node)
    is_well = all(states[kind]["status"] == "False" for kind in _PRESSURES)
    return machine if is_own and is_well else {}


def _second_node(seen: Snapshot) -> Object:
    """The only machine, if it is of the newer one of two sets."""
    sizes = sorted(one["spec"]["replicas"] for one in seen.sets)
    machine = only_node(seen)
    is_new = "testUpdate" in machine.get("metadata", {}).get("labels", {})
    return machine if sizes == [0, 1] and is_new else {}


def _owner(thing: Object) -> str:
    (owner,) = thing["metadata"]["ownerReferences"]
    return str(owner["name"])


def _status(machine: Object) -> dict[str, Any]:
    return dict(machine.get("status", {}))


def _is_going(machine: Object) -> bool:
    return "deletionTimestamp" in machine["metadata"]
