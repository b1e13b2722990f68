"""Decides for each Machine what is due, has it done, and writes what came of it once.

Keys come from changes of Machines, of their Nodes, and of the classes and Secrets they are made
of. A worker puts its turn down while the cloud works, so that few turns do for many machines. A
pass that failed is not repeated before its time, unless the machine or its class changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass

from ccm.base import clock, log
from ccm.controllers.machine import metrics, plan
from ccm.controllers.machine.create import Creator
from ccm.controllers.machine.remove import Remover
from ccm.controllers.machine.tokens import Secrets, Tokens
from ccm.gardener import views
from ccm.gardener.types import Machine, MachineClass, MachineSpec
from ccm.gardener.world import World
from ccm.kube.errors import NotFound
from ccm.machines import joining, nodesync
from ccm.machines.creation import Outcome
from ccm.machines.views import MachineView, Phase
from ccm.model import Node, Secret
from ccm.model.patches import Patch, StaleObject
from ccm.runtime import writer
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, Result, Watch
from ccm.runtime.turns import Turn
from ccm.runtime.writer import Deletes, Step, Writer

NAME = "machine"
QUEUE_NAME = "machine"
"""In logs, and as the value of the work-queue metrics' label."""

MOST_AT_ONCE = 256
"""Machines about which the cloud is asked at once; what else is done at once, a flag says."""

BACK_OFF_CAP_S = 30.0
"""Longest back-off of a machine whose object could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pause:
    """A pass failed: it is not repeated before `until`, unless what it failed on is another."""

    until: float
    spec: MachineSpec
    version: tuple[str, ...]


class MachineController:
    """The machine controller.

    Args:
        world: what the machine controllers share; it is ready.
        machines: requests about Machines.
        nodes: requests about Nodes.
        secrets: requests about Secrets of the cluster that machines join.
        turns: machines in work at once, apart from waiting for the cloud.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        world: World,
        machines: Deletes[Machine],
        nodes: Deletes[Node],
        secrets: Secrets,
        turns: int,
        rng: random.Random | None = None,
    ) -> None:
        self._world = world
        self._machines, self._nodes = machines, nodes
        self._free = asyncio.Semaphore(turns)
        self._write = Writer(machines, cache=world.machines.store, strategic=False, rng=rng)
        self._write_nodes = Writer(nodes, cache=world.nodes.store, rng=rng)
        self._tokens = Tokens(secrets)
        self._creator = Creator(world, self._write, self._tokens)
        self._remover = Remover(world, self._write, self._write_nodes, nodes, self._tokens)
        self._by_node: dict[str, set[str]] = {}
        self._pauses: dict[str, _Pause] = {}
        self._log = log.logger(NAME)
        self.controller = Controller(
            NAME,
            queue=QUEUE_NAME,
            reconcile=self.sync,
            workers=MOST_AT_ONCE,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            # Machines come last: what they are made of is known by then.
            watches=[
                Watch(informer=world.secrets, changed=self._secret_changed),
                Watch(informer=world.classes, changed=self._class_changed),
                Watch(informer=world.nodes, changed=self._node_changed),
                Watch(informer=world.machines, changed=self._machine_changed),
            ],
            tasks={"listings": world.tend},
            on_retry=self._retry,
            rng=rng,
        )

    async def sync(self, key: str) -> Result:
        """Do what is due about one machine.

        Raises:
            KubeError: a write failed.
        """
        cached = self._world.machines.store.get(key)
        if cached is None:
            return DONE
        obj = self._write.newest(cached)
        if (left_s := self.paused_s(obj)) > 0:
            return Result(after_s=left_s, idle=True)
        async with Turn(self._free) as turn:
            try:
                outcome = await self._due(obj, turn)
            except StaleObject:
                # The change that made it stale comes, or came, as a key of its own.
                return IDLE
        return Result(after_s=outcome.after_s) if outcome.after_s is not None else DONE

    async def _due(self, obj: Machine, turn: Turn) -> Outcome:
        machine = views.machine(obj)
        if machine.is_deleting:
            return await self._settle(obj, await self._remover.run(obj, turn))
        if machine.in_creation:
            made = await self._creator.run(obj, turn)
            return await self._settle(made.obj, made.outcome)
        if not self._world.rules.has_target:
            return Outcome()
        node = self._node_of(machine)
        if node is not None and node.is_deleting:
            await self._replace(obj, node)
            return Outcome()
        if node is not None:
            node = await self._sync_node(machine, node)
        outcome = joining.progress(machine, node, clock.now(), self._world.rules)
        return await self._settle(obj, outcome)

    async def _settle(self, obj: Machine, outcome: Outcome) -> Outcome:
        """Write what came of a pass, and see to it that it is not repeated too soon."""
        wanted = outcome.status
        if outcome.joined:
            # Before that is said: whoever goes on after an end in between would not think of it.
            await self._joined(views.machine(obj))
        if wanted is not None:

            def said(one: Machine) -> Patch | None:
                return plan.status(one, obj, wanted)

            written = await self._write.change(obj, Step(said, "status"))
            if written.obj is None:
                raise StaleObject
            self._told(views.machine(obj), views.machine(written.obj))
        self._pause(obj, outcome)
        return outcome

    def _told(self, before: MachineView, after: MachineView) -> None:
        if after.phase is before.phase:
            return
        if after.phase is Phase.FAILED and before.phase is Phase.PENDING:
            metrics.failed_join(before, self._world.class_of(before))
        level = self._log.info if after.status.state != "Failed" else self._log.warning
        level(
            "machine is in another phase",
            machine=after.key,
            phase=after.phase.value,
            error=after.status.description,
        )

    async def _joined(self, machine: MachineView) -> None:
        took_s = (clock.now() - machine.created).total_seconds()
        metrics.took("join", machine, self._world.class_of(machine), took_s)
        await self._tokens.delete(machine, self._world.rules)

    # --- its node ---------------------------------------------------------------------------

    def _node_of(self, machine: MachineView) -> Node | None:
        """The machine's node; None while it has none, or while two machines claim it."""
        if not machine.node_name:
            return None
        others = self._by_node.get(machine.node_name, set()) - {machine.key}
        if others:
            self._log.warning(
                "node belongs to several machines", node=machine.node_name, machine=machine.key
            )
            return None
        node = self._world.nodes.store.get(machine.node_name)
        return None if node is None else self._write_nodes.newest(node)

    async def _sync_node(self, machine: MachineView, node: Node) -> Node | None:
        """Bring the node in step with the machine; the node as it is then."""
        rules = self._world.rules
        extra = self._world.class_of(machine).extra_capacity

        def template(one: Node) -> Patch | None:
            return nodesync.patch(machine, one, rules)

        def capacity(one: Node) -> Patch | None:
            return nodesync.capacity_patch(one, extra, rules)

        def note(one: Node) -> Patch | None:
            return nodesync.capacity_note(one, extra, rules)

        steps = [Step(template), Step(capacity, "status"), Step(note)]
        return (await self._write_nodes.change(node, *steps)).obj

    async def _replace(self, obj: Machine, cached: Node) -> None:
        """Somebody deleted the node: its machine goes with it. Asked once more, past the cache."""
        try:
            node = await self._nodes.get(cached.name)
        except NotFound:
            return
        if node.uid == cached.uid and node.is_deleting:
            self._log.info("node is being deleted, so is its machine", machine=obj.key)
            await writer.delete(self._machines, obj)

    # --- pauses -----------------------------------------------------------------------------

    def paused_s(self, obj: Machine) -> float:
        """Seconds for which a machine is left alone; 0 when there is nothing to wait for."""
        pause = self._pauses.get(obj.key)
        if pause is None:
            return 0.0
        if (pause.spec, pause.version) != (obj.spec, self._version(obj)):
            return 0.0
        return max(0.0, pause.until - clock.monotonic())

    def _pause(self, obj: Machine, outcome: Outcome) -> None:
        self._pauses.pop(obj.key, None)
        machine = views.machine(obj)
        if outcome.after_s is not None and (machine.in_creation or machine.is_deleting):
            self._pauses[obj.key] = _Pause(
                until=clock.monotonic() + outcome.after_s,
                spec=obj.spec,
                version=self._version(obj),
            )

    def _version(self, obj: Machine) -> tuple[str, ...]:
        made_of = self._world.class_of(views.machine(obj))
        return (*made_of.version, str(made_of.is_held), str(obj.is_deleting))

    def _retry(self) -> None:
        """Another provider answers from now on."""
        self._world.listings.drop()
        for key in self._pauses:
            self.controller.queue.add(key, background=True)
        self._pauses.clear()

    # --- the caches ---------------------------------------------------------------------------

    def _machine_changed(self, old: Machine | None, new: Machine | None, _: bool) -> bool:
        names = [views.machine(one).node_name if one else "" for one in (old, new)]
        found = new or old
        if found is not None and names[0] != names[1]:
            self._index(found.key, names[0], names[1])
        metrics.note(old, new, total=len(self._world.machines.store))
        if new is None:
            self._forget(old)
            return False
        return True

    def _index(self, key: str, before: str, after: str) -> None:
        if before in self._by_node:
            self._by_node[before].discard(key)
            if not self._by_node[before]:
                del self._by_node[before]
        if after:
            self._by_node.setdefault(after, set()).add(key)

    def _forget(self, gone: Machine | None) -> None:
        if gone is not None:
            self._pauses.pop(gone.key, None)
            self._write.forget(gone.key)
            self._world.forget(gone.uid)

    def _node_changed(self, old: Node | None, new: Node | None, _: bool) -> bool:
        found = new or old
        if found is not None and plan.node_matters(old, new):
            self._add(self._by_node.get(found.name, ()))
        if new is None and old is not None:
            self._write_nodes.forget(old.key)
        return False

    def _class_changed(
        self, old: MachineClass | None, new: MachineClass | None, initial: bool
    ) -> bool:
        found = new or old
        if not initial and found is not None:
            self._add(self._made_of({found.name}))
        return False

    def _secret_changed(self, old: Secret | None, new: Secret | None, initial: bool) -> bool:
        found = new or old
        if not initial and found is not None:
            name = found.name
            classes = self._world.classes.store.list()
            users = {one.name for one in classes if name in {ref.name for ref in one.secrets}}
            self._add(self._made_of(users))
        return False

    def _made_of(self, classes: set[str]) -> Iterable[str]:
        machines = self._world.machines.store.list()
        return [one.key for one in machines if one.spec.class_.name in classes]

    def _add(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.controller.queue.add(key)
