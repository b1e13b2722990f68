"""What people are told about sets and deployments: how far they are, and what keeps them there.

Read from the objects alone; what a controller remembers beside them it says in their conditions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ccm.gardener import names, rolloutstatus
from ccm.gardener.crdguard import CRDGuard
from ccm.gardener.sets import MachineDeployment, MachineSet
from ccm.gardener.types import ObjectCondition
from ccm.gardener.world import World
from ccm.model.names import STATUS_TRUE
from ccm.model.owners import controller_of, controller_uid
from ccm.runtime.account import Facts

SET, DEPLOYMENT = "machineset", "machinedeployment"
"""Kinds of objects, as somebody asks for them."""

_ADVICE = {
    names.CONDITION_FROZEN: "see why there are so many (kubectl get machines); it thaws when they "
    f"are gone, or by the annotation {names.ANNOTATION_UNFREEZE} on its deployment",
    names.CONDITION_SLOWED: "kube-ccm explain machine, of one that failed; then correct the "
    "template, the class or its Secret, upon which machines are made at once; after another cause, "
    f"set the annotation {names.ANNOTATION_UNFREEZE} on the MachineSet or its MachineDeployment",
    names.CONDITION_REPLICA_FAILURE: "correct what the message names; it is tried again by itself",
}
"""Conditions that keep a set from its work -> what to do. The first that holds is told."""

_CLASS = "correct the class or its Secret as it says; its Machines are tried again at once then"
_RESUME = "kube-ccm rollout resume machinedeployment/{}"
_LATE = "kubectl get machines, and kube-ccm explain machine of those that do not run"


def waiting(world: World) -> Facts:
    """Of any object, before its controller can work."""
    return Facts(
        state="not looked at",
        blocked=f"its controller waits: {world.lacking or 'the API server has not answered yet'}",
        advice="kubectl apply -f manifests/crds.yaml, if the definitions are missing; else look at "
        "the daemon's rights (kube-ccm doctor)",
    )


def unknown(key: str, world: World) -> Facts:
    """Of an object that is not there, or in another namespace than ours."""
    namespace = key.partition("/")[0]
    if namespace == world.namespace:
        return Facts(state="not known")
    return Facts(
        state="not looked at",
        foreign=f"it is in namespace {namespace}, and this daemon looks after those in "
        f"{world.namespace} (--namespace)",
    )


def machine_set(key: str, world: World, guard: CRDGuard) -> Facts:
    """How a set stands; `key` is `namespace/name`."""
    obj = world.machine_sets.store.get(key)
    if obj is None:
        return unknown(key, world)
    if (facts := guard.explain(obj)) is not None:
        return facts
    owner = controller_of(obj)
    of = f" of {owner.kind} {owner.name}" if owner is not None else ""
    there, ready = obj.status.replicas, obj.status.ready_replicas
    blocked, advice = next(_set_obstacles(obj, world), ("", ""))
    return Facts(
        state=f"{there} of {obj.spec.replicas} machines{of}, {ready} run",
        plan=_set_plan(obj),
        blocked=blocked,
        advice=advice,
    )


def machine_deployment(key: str, world: World, guard: CRDGuard) -> Facts:
    """How a deployment stands; `key` is `namespace/name`."""
    obj = world.machine_deployments.store.get(key)
    if obj is None:
        return unknown(key, world)
    if (facts := guard.explain(obj)) is not None:
        return facts
    status, wanted = obj.status, obj.spec.replicas
    sets = [one for one in world.machine_sets.store.list() if controller_uid(one) == obj.uid]
    blocked, advice = next(_hindrances(obj, sets, world), ("", ""))
    return Facts(
        state=f"{status.updated_replicas} of {wanted} machines new, {status.available_replicas} "
        f"available, {status.replicas} there",
        plan=_deployment_plan(obj),
        blocked=blocked,
        advice=advice,
    )


def _set_plan(obj: MachineSet) -> str:
    if obj.is_deleting:
        return "delete its machines"
    missing = obj.spec.replicas - obj.status.replicas
    if not missing:
        return ""
    return f"{'make' if missing > 0 else 'delete'} {_machines(abs(missing))}"


def _deployment_plan(obj: MachineDeployment) -> str:
    if obj.is_deleting:
        return "delete its sets, and their machines with them"
    if rolloutstatus.progress_of(obj).done:
        return ""
    status, wanted = obj.status, obj.spec.replicas
    if status.updated_replicas < wanted:
        return f"make {_machines(wanted - status.updated_replicas)} of its template"
    extra = status.replicas - wanted
    return f"delete {_machines(extra)}" if extra > 0 else ""


def _machines(count: int) -> str:
    return f"{count} machine{'' if count == 1 else 's'}"


def _set_obstacles(obj: MachineSet, world: World) -> Iterator[tuple[str, str]]:
    """What keeps a set from its work, each with what to do."""
    yield from _obstacles(obj)
    if obj.spec.replicas and obj.status.ready_replicas < obj.spec.replicas:
        yield from _class_obstacles(obj, world)


def _class_obstacles(
    obj: MachineSet | MachineDeployment, world: World
) -> Iterator[tuple[str, str]]:
    made_of = obj.spec.template.spec.class_
    if obj.is_deleting or made_of.kind != names.CLASS_KIND or not made_of.name:
        return
    if faults := world.class_faults(obj.namespace, made_of.name):
        told = "; ".join(faults)
        yield f"no VM can be created of MachineClass {made_of.name}: {told}", _CLASS


def _hindrances(
    obj: MachineDeployment, sets: list[MachineSet], world: World
) -> Iterator[tuple[str, str]]:
    """What keeps a deployment from its work, each with what to do."""
    yield from _obstacles(obj)
    if not rolloutstatus.progress_of(obj).done:
        yield from _class_obstacles(obj, world)
    for one in sets:
        for said, advice in _obstacles(one):
            yield f"MachineSet {one.name}: {said}", advice
    progress = rolloutstatus.progress_of(obj)
    if progress.failed:
        yield progress.text, _LATE
    elif obj.spec.paused and not progress.done:
        yield "it is paused", _RESUME.format(obj.name)
    elif not (progress.done or _deployment_plan(obj)):
        available, wanted = obj.status.available_replicas, obj.spec.replicas
        yield f"{available} of {_machines(wanted)} are available", _LATE


def _obstacles(obj: MachineSet | MachineDeployment) -> Iterator[tuple[str, str]]:
    """What its conditions say that keeps it from its work, each with what to do."""
    known: Sequence[ObjectCondition] = obj.status.conditions or []
    said = {one.type: one for one in known if one.status == STATUS_TRUE}
    for kind, advice in _ADVICE.items():
        if kind in said:
            frozen = "it is frozen: " if kind == names.CONDITION_FROZEN else ""
            yield f"{frozen}{said[kind].message}", advice
