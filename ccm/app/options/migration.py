"""Leader migration: which controllers run under the second lease, and which do not run here.

While controllers are moved from one controller manager to another, both managers read one plan:

* A controller that the plan does not mention runs under the manager's own lease.
* A controller that the plan assigns to this program or to any program (`*`) runs under the second
  lease, which the managers share.
* A controller that the plan assigns to another program does not run in this one.

Older controller names, such as `route-controller`, are accepted too.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from ccm.app.options import controllers, documents

COMPONENT = "cloud-controller-manager"
"""Name of this program in a plan."""

GROUP = "controllermanager.config.k8s.io"
KIND = "LeaderMigrationConfiguration"
_OLDER = (f"{GROUP}/v1alpha1", f"{GROUP}/v1beta1")
_V1 = f"{GROUP}/v1"
_LEASES = "leases"


class LeaseAssignment(enum.Enum):
    """Lease under which a controller runs; `ELSEWHERE` means that it runs in another program."""

    MAIN = "under our own lease"
    MIGRATED = "under the shared lease"
    ELSEWHERE = "in another program"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerLeader:
    """An entry of the plan.

    Attributes:
        name: canonical name, alias or former name of a controller.
        component: program that runs the controller; `*` means any program that has the shared
            lease.
    """

    name: str
    component: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMigration:
    """Content of a LeaderMigrationConfiguration.

    Attributes:
        leader_name: name of the shared lease.
        leaders: the entries; the first entry for a controller counts.
    """

    leader_name: str
    leaders: tuple[ControllerLeader, ...] = ()

    def assignment(self, controller: str) -> LeaseAssignment:
        """Return the lease under which the controller with this canonical name runs."""
        for leader in self.leaders:
            if controllers.canonical(leader.name) == controller:
                ours = leader.component in (COMPONENT, controllers.ALL)
                return LeaseAssignment.MIGRATED if ours else LeaseAssignment.ELSEWHERE
        return LeaseAssignment.MAIN


DEFAULT = LeaderMigration(
    leader_name="cloud-provider-extraction-migration",
    leaders=tuple(
        ControllerLeader(name=name, component=controllers.ALL)
        for name in ("route-controller", "service-controller", "cloud-node-lifecycle-controller")
    ),
)
"""The default plan (from Kubernetes, k8s.io/controller-manager, leader migration)."""


def load(file: str) -> LeaderMigration:
    """Read the plan from a file of API version v1alpha1, v1beta1 or v1.

    Raises:
        DocumentError: the file is invalid; lists every fault with its path.
    """
    return documents.load(
        file,
        "--leader-migration-config",
        lambda top: parse(top, with_lock=top.take("apiVersion") != _V1),
        kind=KIND,
        versions=(*_OLDER, _V1),
    )


def parse(section: documents.DocumentSection, *, with_lock: bool = True) -> LeaderMigration:
    """Read the plan from a section, and add faults to the section.

    Args:
        section: mapping with `leaderName` and `controllerLeaders`.
        with_lock: whether the API version has the field `resourceLock`, which is then required.
    """
    lease = section.text("leaderName")
    if not lease:
        section.add_fault("leaderName", "is missing; set the name of the shared lease")
    if with_lock:
        lock = section.text("resourceLock")
        if lock != _LEASES:
            # Deviation: the Go program accepts `endpoints` here and crashes later.
            section.add_fault("resourceLock", f"is {lock!r}; must be {_LEASES!r}")
    return LeaderMigration(
        leader_name=lease,
        leaders=tuple(_leader(entry) for entry in section.sections("controllerLeaders")),
    )


def write(plan: LeaderMigration) -> dict[str, Any]:
    """Return the plan as data that `parse` can read."""
    return {
        "leaderName": plan.leader_name,
        "resourceLock": _LEASES,
        "controllerLeaders": [
            {"name": leader.name, "component": leader.component} for leader in plan.leaders
        ],
    }


def _leader(section: documents.DocumentSection) -> ControllerLeader:
    leader = ControllerLeader(name=section.text("name"), component=section.text("component"))
    for name, value in (("name", leader.name), ("component", leader.component)):
        if not value:
            section.add_fault(name, "is missing")
    section.reject_unknown()
    return leader
