"""Ends a machine: its VM, its bootstrap token, its node, and last the finalizer.

Nothing goes before the driver said that the VM is gone.
"""

from __future__ import annotations

from ccm.base import clock, log
from ccm.cloud import errors
from ccm.cloud.errors import CloudError
from ccm.cloud.machines import MachineDriver
from ccm.controllers.machine import metrics
from ccm.controllers.machine.tokens import Tokens
from ccm.gardener import views
from ccm.gardener.types import Machine
from ccm.gardener.world import World
from ccm.machines import removal
from ccm.machines.creation import Outcome
from ccm.machines.nodesync import release_patch
from ccm.machines.views import ClassView, MachineView
from ccm.model import Node
from ccm.model.patches import remove_finalizer
from ccm.runtime import writer
from ccm.runtime.turns import Turn
from ccm.runtime.writer import Deletes, Writer

_log = log.logger("machine")


class Remover:
    """Ends machines.

    Args:
        world: what the machine controllers share.
        write: writes Machines.
        write_nodes: writes Nodes.
        nodes: deletes Nodes.
        tokens: the bootstrap tokens.
    """

    def __init__(
        self,
        world: World,
        write: Writer[Machine],
        write_nodes: Writer[Node],
        nodes: Deletes[Node],
        tokens: Tokens,
    ) -> None:
        self._world = world
        self._write = write
        self._write_nodes = write_nodes
        self._nodes = nodes
        self._tokens = tokens

    async def run(self, obj: Machine, turn: Turn) -> Outcome:
        """Go as far as it goes; what comes out of it where the VM is not gone yet.

        Raises:
            KubeError: a write failed.
        """
        machine, rules = views.machine(obj), self._world.rules
        if rules.finalizer not in obj.finalizers:
            return Outcome()
        made_of = self._world.class_of(machine)
        if made_of.faults:
            return removal.impossible(machine, made_of.faults, clock.now())
        try:
            await self._delete_vm(machine, made_of, turn)
        except CloudError as error:
            return removal.failed(machine, error, clock.now())
        _log.info("VM deleted", machine=machine.key, provider_id=machine.provider_id)
        if rules.has_target:
            await self._tokens.delete(machine, rules)
            await self._delete_node(machine)
        await self._write.change(
            obj,
            writer.Step(lambda one: remove_finalizer(one, rules.finalizer, strategic=False)),
        )
        return Outcome()

    async def _delete_vm(self, machine: MachineView, made_of: ClassView, turn: Turn) -> None:
        request = self._world.request(machine, made_of)
        began = clock.monotonic()
        async with turn.put_down():
            try:
                await self._world.call(MachineDriver.delete_machine, request)
            except errors.NotFound:
                return
        metrics.took("delete", machine, made_of, clock.monotonic() - began)

    async def _delete_node(self, machine: MachineView) -> None:
        """The node of the VM that is gone; one of another VM under that name stays."""
        node = self._world.nodes.store.get(machine.node_name) if machine.node_name else None
        if node is None or not removal.is_its_node(machine, node):
            return
        rules = self._world.rules
        released = await self._write_nodes.change(
            node, writer.Step(lambda one: release_patch(one, rules))
        )
        if released.obj is not None and not released.obj.is_deleting:
            await writer.delete(self._nodes, released.obj)
