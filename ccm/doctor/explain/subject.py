"""What is known about one object, and how it is as the cluster shows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ccm.gardener import rolloutstatus
from ccm.gardener.sets import MachineDeployment, MachineSet
from ccm.model import Node, Service, names
from ccm.model.machines import Machine, Phase
from ccm.model.node import is_uninitialized
from ccm.runtime.account import Answer

NODE, SERVICE, MACHINE = "node", "service", "machine"

Known = Node | Service | Machine | MachineSet | MachineDeployment
"""An object as the cluster has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Why no daemon was asked.

    Attributes:
        why: a phrase.
        advice: what to do about it.
        is_leaderless: whether no daemon works; else one may, and could not be asked.
    """

    why: str
    advice: str
    is_leaderless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known about one object.

    Attributes:
        kind: of object: `NODE`, `SERVICE` or `MACHINE`, or a kind of `ccm.gardener.explaining`.
        name: as it was asked for.
        found: as the cluster has it; None: there is none.
        is_served: whether the API server knows such objects at all.
        answer: the daemon's word; None: there is none.
        silence: why not.
        foreign: why it is another's by the flags that were given; the daemon knows better.
    """

    kind: str
    name: str
    found: Known | None
    is_served: bool = True
    answer: Answer | None = None
    silence: Silence | None = None
    foreign: str = ""


def state(case: Case) -> str:
    """How the object is, as the cluster shows it: a sentence without its end."""
    found = case.found
    if found is None:
        return f"{case.kind} {case.name} does not exist"
    if isinstance(found, Node):
        if is_uninitialized(found):
            return f"{case.name} is not initialised"
        return f"{case.name} is {'' if found.ready == names.STATUS_TRUE else 'not '}ready"
    if isinstance(found, Machine):
        return f"{case.name} {_machine_state(found)}"
    if found.is_deleting:
        return f"{case.name} cannot be deleted yet"
    if isinstance(found, MachineSet):
        return f"{case.name} has {found.status.replicas} of {found.spec.replicas} machines"
    if isinstance(found, MachineDeployment):
        progress = rolloutstatus.progress_of(found)
        is_done = progress.done and not progress.failed
        return f"{case.name} is {'' if is_done else 'not '}rolled out"
    where = ", ".join(entry.ip or entry.hostname for entry in found.ingress)
    return f"{case.name} is served at {where}" if where else f"{case.name} has no load balancer"


def _machine_state(machine: Machine) -> str:
    if machine.is_deleting:
        return "cannot be deleted yet"
    match machine.phase:
        case Phase.RUNNING:
            return f"runs as node {machine.node_name}"
        case Phase.AVAILABLE:
            return f"has its VM {machine.provider_id}"
        case Phase.PENDING:
            return "has not joined"
        case Phase.UNKNOWN:
            return "is not healthy"
        case Phase.FAILED if machine.provider_id:
            return "has failed"
        case _:
            return "is not set up" if machine.provider_id else "has no VM"
