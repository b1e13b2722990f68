"""What people are told about a Machine: how far it is, and what keeps it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from ccm.base import clock
from ccm.base.durations import format_duration
from ccm.cloud import codes
from ccm.cloud.calls.history import MACHINE, POOL
from ccm.cloud.errors import FailedPrecondition
from ccm.gardener import names
from ccm.gardener.crdguard import CRDGuard
from ccm.gardener.explaining import unknown
from ccm.gardener.world import World
from ccm.machines import health, updating
from ccm.machines.classes import ClassView
from ccm.model import Node
from ccm.model.machines import Machine, Phase, State
from ccm.model.names import STATUS_FALSE
from ccm.runtime.account import Facts

_MAKE = "make its VM, or find the one that it made"
_REMOVE = "delete its VM, then its bootstrap token and its node"

_CLASS_FIRST = "correct the class or its Secret as it says; it is tried again at once then"
_JOIN = (
    "nothing while the VM boots; if that lasts, look at the VM's console: its user data, the way "
    "to the API server, and the name that its kubelet registers with (--hostname-override)"
)
_REPLACE = (
    "look at the VM's console, or delete the Machine, and its VM with it: kubectl -n NAMESPACE "
    "delete machine NAME"
)


def explain(key: str, world: World, guard: CRDGuard, paused_s: Callable[[Machine], float]) -> Facts:
    """How a Machine stands.

    Args:
        key: `namespace/name`.
        world: what the machine controllers share.
        guard: blocks deletions that follow from that of the CRD.
        paused_s: seconds for which it is left alone.
    """
    obj = world.machines.store.get(key)
    if obj is None:
        return unknown(key, world)
    if (facts := guard.explain(obj)) is not None:
        return facts
    machine = obj
    made_of = world.class_of(machine)
    about = ((POOL, machine.class_name), (MACHINE, machine.name))
    next_s = paused_s(obj) or None
    if machine.is_deleting:
        # That needs the credentials of the class only.
        return _by_cloud(machine, made_of, made_of.lacking, about, next_s)
    if machine.in_creation:
        faults = world.class_faults(machine.metadata.namespace, machine.class_name)
        return _by_cloud(machine, made_of, faults, about, next_s)
    found = _joined(machine, world) if world.settings.has_target else Facts(state="its VM is there")
    return Facts(
        state=found.state,
        blocked=found.blocked,
        advice=found.advice.replace("NAMESPACE", machine.metadata.namespace).replace(
            "NAME", machine.name
        ),
        next_s=found.next_s,
        about=about,
    )


def _by_cloud(
    machine: Machine,
    made_of: ClassView,
    faults: Sequence[str],
    about: tuple[tuple[str, str], ...],
    next_s: float | None,
) -> Facts:
    """Where the cloud has the next word."""
    state = "being deleted" if machine.is_deleting else "without VM"
    if machine.provider_id and not machine.is_deleting:
        state = f"VM {machine.provider_id} is not set up"
    plan = _REMOVE if machine.is_deleting else _MAKE
    if faults:
        return Facts(
            state=state,
            plan=plan,
            blocked="; ".join(faults),
            advice=_CLASS_FIRST,
            about=about,
        )
    if not (made_of.is_held or machine.is_deleting):
        return Facts(
            state=state,
            plan=plan,
            blocked=f"its class {made_of.name} does not carry the finalizer {names.FINALIZER}, "
            "without which it could vanish under its machines",
            advice="let the machine class controller run: "
            "--controllers=*,machine,machineclass,machinesafety",
            next_s=next_s,
            about=about,
        )
    failed, ago_s = _failed(machine)
    if failed[0] and machine.provider_id and not (machine.node_name or machine.is_deleting):
        return Facts(
            state=state,
            plan=plan,
            blocked=f"spec.providerID names {machine.provider_id}, and the cloud knows no VM of "
            "that ID",
            advice="correct spec.providerID: while it stands no VM is made; or delete the Machine",
            next_s=next_s,
            about=about,
        )
    return Facts(
        state=state, plan=plan, next_s=next_s, failed=failed, failed_ago_s=ago_s, about=about
    )


def _failed(machine: Machine) -> tuple[tuple[str, str], float]:
    """Class and text of the error that its status tells of, and how old that is."""
    status = machine.status
    if status.state != State.FAILED.value or status.updated is None:
        return ("", ""), 0.0
    ago_s = max(0.0, (clock.now() - status.updated).total_seconds())
    error = codes.parse_error(status.description)
    if error is None:
        return (FailedPrecondition.__name__, status.description), ago_s
    return (type(error).__name__, str(error)), ago_s


def _joined(machine: Machine, world: World) -> Facts:
    """Where its node has the next word."""
    node = world.nodes.store.get(machine.node_name)
    rivals = [
        one.name
        for one in world.machines.store.list()
        if one.key != machine.key and one.node_name == machine.node_name
    ]
    if rivals:
        return Facts(
            state="shares its node",
            blocked=f"Node {machine.node_name} is claimed by {', '.join(rivals)} too, so it counts "
            "for none of them",
            advice="delete the Machine that the node is not of, or correct its label `node`",
        )
    if machine.phase is Phase.PENDING:
        return _waits(machine, node, world)
    if machine.phase is Phase.RUNNING and node is not None:
        return Facts(state=f"runs as node {node.name}, VM {machine.provider_id}")
    if machine.phase in updating.UNDER_WAY:
        return _in_place(machine, world)
    if machine.phase in (Phase.FAILED, Phase.UNKNOWN):
        said = machine.status.description or "its status does not say why"
        return Facts(
            state=f"phase {machine.phase.value}",
            blocked=f"{said}; {_sick(machine, node, world)}",
            advice=_REPLACE,
        )
    return Facts(state=f"phase {machine.phase.value}, {_sick(machine, node, world)}")


def _in_place(machine: Machine, world: World) -> Facts:
    name, names = machine.node_name, world.settings.names
    state = f"phase {machine.phase.value}"
    done = f"kubectl label node {name} --overwrite {names.update_result}={names.update_successful}"
    if machine.phase is Phase.UPDATE_FAILED:
        return Facts(
            state=state,
            blocked=machine.status.description or "its status does not say why",
            advice=f"mend the node, then {done}; or delete the Machine, and its VM with it: "
            "kubectl -n NAMESPACE delete machine NAME",
        )
    return Facts(
        state=state,
        blocked=f"Node {name} is empty, and waits for your agent to update it and to say so",
        advice=f"look at the agent on the node; it ends with {done}, or the value "
        f"{names.update_unsuccessful}",
    )


def _waits(machine: Machine, node: Node | None, world: World) -> Facts:
    age_s = (clock.now() - machine.created).total_seconds()
    left_s = max(0.0, world.settings.timeout_s(machine) - age_s)
    left = format_duration(timedelta(seconds=round(left_s)))
    return Facts(
        state=f"VM {machine.provider_id} is there",
        blocked=f"VM {machine.provider_id} is there, and {_sick(machine, node, world)}; unless it "
        f"joins, the Machine fails in {left}",
        advice=_JOIN,
        next_s=left_s,
    )


def _sick(machine: Machine, node: Node | None, world: World) -> str:
    """What is missing of its node."""
    if node is None:
        return f"no Node {machine.node_name} is there"
    if health.is_critical(node, world.settings):
        return f"Node {node.name} still has the taint {world.settings.names.critical_taint}"
    own = machine.unhealthy_conditions
    sick = [
        f"{one.type} is {one.status}"
        for one in node.status.conditions or ()
        if one.type in (world.settings.unhealthy_conditions if own is None else own)
        and one.status != STATUS_FALSE
    ]
    if node.ready != "True":
        sick.insert(0, f"Ready is {node.ready}")
    return f"Node {node.name}: {', '.join(sick)}" if sick else f"Node {node.name} is healthy"
