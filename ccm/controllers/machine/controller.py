"""Decides for each Machine what is due, has it done, and writes what came of it once.

Keys come from changes of Machines, of their Nodes, and of the classes and Secrets they are made
of. A worker puts its turn down while the cloud works, so that few turns do for many machines. A
pass that failed is not repeated before its time, unless the machine or its class changes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ccm.base import clock, log
from ccm.controllers.machine import plan
from ccm.controllers.machine.create import Creator
from ccm.controllers.machine.freeze import SETTLING_S, Freezer, Looks
from ccm.controllers.machine.health import Health, sooner
from ccm.controllers.machine.preserve import Preserver
from ccm.controllers.machine.remove import Drains, ListsAttachments, NodesVolumes, Remover, Target
from ccm.controllers.machine.terminate import Pauses, Terminations
from ccm.controllers.machine.tokens import Secrets, Tokens
from ccm.controllers.machine.update import Updater
from ccm.machines import metrics, reasons
from ccm.machines.crdguard import CRDGuard
from ccm.machines.creation import Outcome
from ccm.machines.driver import Shared
from ccm.model import Node, Secret
from ccm.model.machines import Machine, MachineClass, OperationState, Phase
from ccm.model.names import WARNING
from ccm.model.patches import Patch, StaleObject
from ccm.runtime.backoff import default_backoff
from ccm.runtime.controller import DONE, IDLE, Controller, Result, Watch
from ccm.runtime.workers import Turn
from ccm.runtime.writer import Deletes, Recorder, Step, Writer

NAME = "machine"
QUEUE_NAME = "machine"
"""In logs, and as the value of the work-queue metrics' label."""

MOST_AT_ONCE = 256
"""Machines about which the cloud is asked at once; what else is done at once, a flag says."""

CONFLICT_S = 0.2
"""When a machine is looked at again that is in another hand (reference)."""

BACK_OFF_CAP_S = 30.0
"""Longest back-off of a machine whose object could not be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """To the API servers.

    Attributes:
        machines: about Machines.
        nodes: about Nodes.
        secrets: about Secrets of the cluster that machines join.
        volumes: about the volumes of nodes.
        attachments: about attachments of volumes.
    """

    machines: Deletes[Machine]
    nodes: Deletes[Node]
    secrets: Secrets
    volumes: NodesVolumes
    attachments: ListsAttachments


class MachineController:
    """The machine controller.

    Args:
        shared: what the machine controllers share; the caches are ready.
        requests: to the API servers.
        guard: blocks deletions that follow from that of the CRD.
        drains: empties nodes.
        events: where events go.
        turns: machines in work at once, apart from waiting for the cloud, of each queue.
        looks: how often it is looked whether API servers are there.
        rng: jitter.
    """

    def __init__(
        self,
        *,
        shared: Shared,
        requests: Requests,
        guard: CRDGuard,
        drains: Drains,
        events: Recorder,
        turns: int,
        looks: Looks,
        rng: random.Random | None = None,
    ) -> None:
        machines, nodes = requests.machines, requests.nodes
        self._shared, self._vms = shared, shared.vms
        self._caches = caches = shared.caches
        self._kind = caches.codec.machines
        self._free = asyncio.Semaphore(turns)
        self._write = Writer(machines, cache=caches.machines.store, strategic=False, rng=rng)
        self._write_nodes = Writer(nodes, cache=caches.nodes.store, rng=rng)
        self._tokens = Tokens(requests.secrets)
        self._creator = Creator(shared, self._write, self._tokens)
        caches.arrivals.claim = self._creator.claim
        self._vms.on_new_origins = self._origins_seen
        target = Target(
            nodes=self._write_nodes,
            delete_nodes=nodes,
            volumes=requests.volumes,
            attachments=requests.attachments,
            tokens=self._tokens,
            drains=drains,
        )
        self._events = events
        self._in_hand: set[str] = set()
        self._terminations = Terminations(
            caches,
            Remover(shared, self._write, target, events=events),
            guard,
            self._in_hand,
            turns=turns,
            rng=rng,
        )
        self._freezer = Freezer(
            caches,
            self._write,
            machines=machines,
            nodes=nodes,
            thawed=self._thawed,
            looks=looks,
        )
        self._pauses = Pauses()
        self._health = Health(
            shared,
            machines=machines,
            nodes=nodes,
            write_nodes=self._write_nodes,
            events=events,
            settle=self._settle,
            wake=self._add,
        )
        self._preserver = Preserver(
            caches,
            health=self._health,
            write=self._write,
            write_nodes=self._write_nodes,
            events=events,
            drains=drains,
            wake=self._add,
        )
        self._updater = Updater(
            caches,
            health=self._health,
            write=self._write,
            nodes=nodes,
            write_nodes=self._write_nodes,
            drains=drains,
            settle=self._settle,
            wake=self._add,
        )
        self._log = log.logger(NAME)
        self.controller = Controller(
            NAME,
            queue=QUEUE_NAME,
            reconcile=self.sync,
            workers=MOST_AT_ONCE,
            backoff=default_backoff(cap_s=BACK_OFF_CAP_S, rng=rng),
            # Machines come last: what they are made of is known by then.
            watches=[
                Watch(informer=caches.secrets, changed=self._secret_changed),
                Watch(informer=caches.classes, changed=self._class_changed),
                Watch(informer=caches.nodes, changed=self._node_changed),
                Watch(informer=caches.machines, changed=self._machine_changed),
            ],
            tasks={
                "drains": drains.tend,
                "listings": shared.vms.tend,
                "reachability": self._freezer.run,
                "terminations": self._terminations.controller.run,
            },
            on_retry=self._retry,
            rng=rng,
        )

    async def sync(self, key: str) -> Result:
        """Do what is due about one machine.

        Raises:
            KubeError: a write failed.
        """
        cached = self._caches.machines.store.get(key)
        if cached is None:
            return DONE
        machine = self._write.newest(cached)
        if machine.is_deleting:
            self._terminations.add(key)
            return IDLE
        if self._terminations.has(key):
            # The former machine of that name is gone, and its last pass not yet at its end.
            return Result(after_s=CONFLICT_S, idle=True)
        if self._freezer.is_frozen:
            return IDLE
        if (left_s := self.paused_s(machine)) > 0:
            return Result(after_s=left_s, idle=True)
        self._in_hand.add(key)
        try:
            async with Turn(self._free) as turn:
                outcome = await self._due(machine, turn)
        except StaleObject:
            # The change that made it stale comes, or came, as a key of its own.
            return IDLE
        finally:
            self._in_hand.discard(key)
            self._terminations.handed_over(key)
        if outcome.after_s is None:
            return DONE
        # Where something else is due before, that comes first.
        is_busy = outcome.busy is not None and outcome.after_s == outcome.busy.seconds
        busy = outcome.busy if is_busy else None
        return Result(after_s=outcome.after_s, punctual=outcome.punctual, busy=busy)

    async def _due(self, machine: Machine, turn: Turn) -> Outcome:
        if origin := self._vms.new_origins.get(machine.uid):
            machine = await self._creator.written(
                machine, lambda one: plan.origin(one, origin, self._caches.settings.names)
            )
            self._vms.new_origins.pop(machine.uid, None)
        if machine.in_creation:
            made = await self._creator.run(machine, turn)
            outcome = await self._settle(made.machine, made.outcome)
        else:
            outcome = await self._health.run(machine)
            update_s = await self._updater.run(machine.key)
            outcome = replace(outcome, after_s=sooner(outcome.after_s, update_s))
        again_s = sooner(outcome.after_s, await self._preserver.run(machine.key))
        return replace(outcome, after_s=again_s, punctual=not machine.in_creation)

    async def _settle(self, machine: Machine, outcome: Outcome) -> Outcome:
        """Write what came of a pass, and see to it that it is not repeated too soon."""
        wanted = outcome.status
        if outcome.joined:
            # Before that is said: whoever goes on after an end in between would not think of it.
            await self._joined(machine)
        if wanted is not None:

            def said(one: Machine) -> Patch | None:
                return self._caches.codec.new_status(one, machine, wanted)

            written = await self._write.change(machine, Step(said, "status"))
            if written.obj is None:
                raise StaleObject
            self._told(machine, written.obj)
            if outcome.is_invalid and written.changed:
                about, text = self._kind.reference(written.obj), wanted.description
                self._events.event(about, WARNING, reasons.REASON_INVALID, text)
        self._pause(machine, outcome)
        return outcome

    def _told(self, before: Machine, after: Machine) -> None:
        if after.phase is before.phase:
            return
        self._health.tell(before, after)
        if after.phase is Phase.FAILED and before.phase is Phase.PENDING:
            metrics.failed_join(before, self._caches.class_of(before))
        is_failed = after.status.state == OperationState.FAILED.value
        level = self._log.warning if is_failed else self._log.info
        text = {"error" if is_failed else "description": after.status.description}
        level("machine is in another phase", machine=after.key, phase=after.phase.value, **text)

    async def _joined(self, machine: Machine) -> None:
        took_s = self._caches.ages.of(machine)
        metrics.took("join", machine, self._caches.class_of(machine), took_s)
        await self._tokens.delete(machine, self._caches.settings)

    # --- pauses -----------------------------------------------------------------------------

    def paused_s(self, machine: Machine) -> float:
        """Seconds for which a machine is left alone; 0 when there is nothing to wait for."""
        return self._pauses.left_s(machine.key, clock.monotonic(), self._about(machine))

    def _pause(self, machine: Machine, outcome: Outcome) -> None:
        self._pauses.end(machine.key)
        if outcome.after_s is not None and machine.in_creation:
            until = clock.monotonic() + outcome.after_s
            self._pauses.begin(machine.key, until, self._about(machine))

    def _about(self, machine: Machine) -> object:
        """What ends a pause when it is another."""
        made_of = self._caches.class_of(machine)
        return (machine.spec, made_of.version, made_of.is_held)

    def _retry(self) -> None:
        """Another provider answers from now on."""
        self._vms.listings.drop()
        for key in self._pauses.end_all():
            self.controller.queue.add(key, background=True)
        self._terminations.controller.retry_now()

    def _thawed(self) -> None:
        """An API server is back: all are looked at, when nodes had time to report."""
        for one in self._caches.machines.store.list():
            self.controller.queue.add_after(one.key, SETTLING_S)

    # --- the caches ---------------------------------------------------------------------------

    def _machine_changed(self, old: Machine | None, new: Machine | None, initial: bool) -> bool:
        self._health.machine_changed(old, new, initial=initial)
        metrics.note_machine(old, new, total=len(self._caches.machines.store))
        if new is None:
            self._forget(old)
            return False
        if new.is_deleting:
            self._updater.forget(new.key)
            self._preserver.forget(new.uid)
            self._terminations.add(new.key)
        return not new.is_deleting

    def _forget(self, gone: Machine | None) -> None:
        if gone is not None:
            self._pauses.end(gone.key)
            self._updater.forget(gone.key)
            self._terminations.gone(gone)
            self._write.forget(gone.key)
            self._tokens.forget(gone.uid)
            self._preserver.forget(gone.uid)
            self._shared.forget(gone.uid)
            self._creator.creations_ended.pop(gone.uid, None)

    def _node_changed(self, old: Node | None, new: Node | None, _: bool) -> bool:
        found = new or old
        if found is not None and plan.node_matters(old, new, self._caches.settings.names):
            self._add(self._health.on_node(found.name))
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
            classes = self._caches.classes_with_secret(found.name)
            self._add(self._made_of({one.name for one in classes}))
        return False

    def _made_of(self, classes: set[str]) -> Iterable[str]:
        machines = self._caches.machines.store.list()
        return [one.key for one in machines if one.class_name in classes]

    def _origins_seen(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.controller.queue.add(key, background=True)

    def _add(self, keys: Iterable[str]) -> None:
        for key in keys:
            found = self._caches.machines.store.get(key)
            goes = found is not None and found.is_deleting
            (self._terminations if goes else self.controller.queue).add(key)
