"""Names, flags and rights of the machine controller, and how it is made."""

# ruff: noqa: RUF009 - `Section.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from ccm.base.flags import (
    Fault,
    at_least_one,
    not_negative,
    positive,
)
from ccm.gardener import flags as gardener
from ccm.runtime.manifest import ControllerContext, Manifest

if TYPE_CHECKING:
    from ccm.runtime.controller import Runnable

NAME = "machine-controller"


@dataclass(frozen=True, kw_only=True)
class MachineFlags(gardener.GardenerFlags):
    """The flags of this controller."""

    machine_concurrent_syncs: int = gardener.SECTION.flag(
        50,
        "Machines that are worked on at the same time, without those that wait for the cloud. The "
        "reference calls it --concurrent-syncs.",
        unit="machines",
        check=at_least_one,
    )
    machine_max_evict_retries: int = gardener.SECTION.flag(
        360,
        "How often the eviction of a Pod is repeated, every 20s, that its disruption budget "
        "refuses; then the Pod is deleted. A Machine may have its own.",
        unit="retries",
        check=lambda value: "" if value >= 0 else "must not be negative",
    )
    machine_pv_reattach_timeout: timedelta = gardener.SECTION.flag(
        timedelta(seconds=90),
        "Time for which a drain waits for the volumes of a Pod to be attached to another node, "
        "before the next Pod with volumes leaves.",
        check=not_negative,
    )
    machine_safety_apiserver_statuscheck_timeout: timedelta = gardener.SECTION.flag(
        timedelta(seconds=30),
        "Time for which an API server may not answer before machines are frozen: none is made "
        "and none fails until it answers again.",
        check=positive,
    )
    machine_safety_apiserver_statuscheck_period: timedelta = gardener.SECTION.flag(
        timedelta(minutes=1),
        "Time between two looks whether the API servers answer; not less than the timeout.",
        check=positive,
    )


def _faults(flags: MachineFlags) -> Iterator[Fault]:
    period = flags.machine_safety_apiserver_statuscheck_period
    timeout = flags.machine_safety_apiserver_statuscheck_timeout
    if timedelta(0) < period < timeout:
        yield (
            "machine-safety-apiserver-statuscheck-period",
            "cannot be shorter than --machine-safety-apiserver-statuscheck-timeout",
        )


def _build(context: ControllerContext, flags: MachineFlags) -> Runnable:
    from ccm.cloud.calls.history import MACHINE, POOL
    from ccm.controllers.machine.controller import MachineController, Requests
    from ccm.controllers.machine.drain import Drainer
    from ccm.controllers.machine.freeze import Looks
    from ccm.gardener.crdguard import CRDGuard
    from ccm.gardener.kinds import MACHINES
    from ccm.gardener.names import COMPONENT
    from ccm.kube.resources import ATTACHMENTS, CRDS, NODE_VOLUMES, NODES, SECRETS
    from ccm.machines.drain import Settings
    from ccm.runtime.account import Facts
    from ccm.runtime.lazy import LazyController

    world = gardener.world(context, flags)
    control, target = context.at(gardener.CONTROL), context.at(gardener.TARGET)
    client, theirs = control.client(MANIFEST.client), target.client(MANIFEST.client)
    guard = CRDGuard(
        MACHINES, client.resource(CRDS), control.recorder(COMPONENT), context.deletions
    )
    settings = Settings(
        max_evict_retries=flags.machine_max_evict_retries,
        detach_timeout_s=flags.machine_pv_detach_timeout.total_seconds(),
        reattach_timeout_s=flags.machine_pv_reattach_timeout.total_seconds(),
    )
    looks = Looks(
        period_s=flags.machine_safety_apiserver_statuscheck_period.total_seconds(),
        timeout_s=flags.machine_safety_apiserver_statuscheck_timeout.total_seconds(),
    )

    def make() -> Runnable:
        made = MachineController(
            world=world,
            requests=Requests(
                machines=client.resource(MACHINES),
                nodes=theirs.resource(NODES),
                secrets=theirs.resource(SECRETS),
                volumes=theirs.resource(NODE_VOLUMES),
                attachments=theirs.resource(ATTACHMENTS),
            ),
            guard=guard,
            drains=Drainer(
                world=world, client=theirs, settings=settings, events=control.recorder(COMPONENT)
            ),
            looks=looks,
            events=control.recorder(COMPONENT),
            turns=flags.machine_concurrent_syncs,
        )

        def facts(key: str) -> Facts:
            obj = world.machines.store.get(key)
            found = guard.facts(obj, key, namespace=world.namespace)
            if obj is None:
                return found
            about = ((POOL, obj.class_name), (MACHINE, obj.name))
            return replace(found, next_s=made.paused_s(obj) or None, about=about)

        made.controller.explains["machine"] = facts
        return made.controller

    return LazyController(world.ready, make)


MANIFEST: Manifest[MachineFlags] = Manifest(
    name=NAME,
    alias="machine",
    client=gardener.ACCOUNT,
    metric="machine",
    groups={
        **gardener.GROUPS,
        "poddisruptionbudgets": "policy",
        "volumeattachments": "storage.k8s.io",
    },
    roles=gardener.roles,
    acts=(
        ("get", "namespaces"),
        ("get", "nodes"),
        # A drain watches the volumes of its node itself.
        ("list", "nodes"),
        ("watch", "nodes"),
        ("patch", "nodes"),
        ("patch", "nodes/status"),
        ("delete", "nodes"),
        ("list", "pods"),
        ("watch", "pods"),
        ("delete", "pods"),
        ("create", "pods/eviction"),
        ("list", "poddisruptionbudgets"),
        ("watch", "poddisruptionbudgets"),
        ("get", "persistentvolumeclaims"),
        ("get", "persistentvolumes"),
        ("list", "volumeattachments"),
        ("watch", "volumeattachments"),
        ("delete", "volumeattachments"),
    ),
    named=gardener.reads_crd("machines"),
    local=gardener.local(
        ("get", "machines"),
        ("patch", "machines"),
        ("patch", "machines/status"),
        ("delete", "machines"),
    ),
    optional=gardener.BOOTSTRAP_TOKENS,
    # Another program may see to the same objects already: two of them would fight.
    off_by_default=True,
    faults=_faults,
    lacks=gardener.lacks_machines,
    build=_build,
)
