"""Leader migration: which controllers run under the second lease, and which do not run here.

While a cluster moves controllers from one manager to another, both read the same plan. What
the plan does not mention runs under a manager's own lease; what it gives to us, or to
everybody (`*`), runs under a lease that the managers share; what it gives to another does
not run here. The names of before the split, such as `route-controller`, are understood too.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from ccm.app.options import documents, names

COMPONENT = "cloud-controller-manager"
"""How a plan names this program."""

GROUP = "controllermanager.config.k8s.io"
KIND = "LeaderMigrationConfiguration"
_OLDER = (f"{GROUP}/v1alpha1", f"{GROUP}/v1beta1")
_V1 = f"{GROUP}/v1"
_LEASES = "leases"


class Runs(enum.Enum):
    """Where a controller runs."""

    MAIN = "under our own lease"
    MIGRATED = "under the shared lease"
    ELSEWHERE = "in another program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """An entry of the plan.

    Attributes:
        name: a controller, as the plan names it.
        component: the program that runs it; `*` = any, under the shared lease.
    """

    name: str
    component: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a leader migration configuration says.

    Attributes:
        leader_name: name of the shared lease.
        leaders: its entries; the first that names a controller counts.
    """

    leader_name: str
    leaders: tuple[Leader, ...] = ()

    def of(self, controller: str) -> Runs:
        """Where a controller, given by its canonical name, runs."""
        for leader in self.leaders:
            if names.canonical(leader.name) == controller:
                ours = leader.component in (COMPONENT, names.ALL)
                return Runs.MIGRATED if ours else Runs.ELSEWHERE
        return Runs.MAIN


DEFAULT = Plan(
    leader_name="cloud-provider-extraction-migration",
    leaders=tuple(
        Leader(name=name, component=names.ALL)
        for name in ("route-controller", "service-controller", "cloud-node-lifecycle-controller")
    ),
)
"""The plan without a file (Kubernetes, controller-manager configuration, built-in default)."""


def load(file: str) -> Plan:
    """The plan in a file of any of the three versions.

    Raises:
        DocumentError: every fault of the file, with its place.
    """
    return documents.load(
        file,
        "--leader-migration-config",
        lambda top: take(top, with_lock=top.take("apiVersion") != _V1),
        kind=KIND,
        versions=(*_OLDER, _V1),
    )


def take(section: documents.Section, *, with_lock: bool = True) -> Plan:
    """The plan in a section; faults are left with it.

    Args:
        section: the mapping that holds leaderName and so on.
        with_lock: whether `resourceLock` may be given.
    """
    lease = section.text("leaderName")
    if not lease:
        section.fault("leaderName", "is missing; it names the shared lease")
    if with_lock:
        lock = section.text("resourceLock")
        if lock != _LEASES:
            # Deviation: the reference lets `endpoints` pass here, and dies of it later.
            section.fault("resourceLock", f"is {lock!r}; it must be {_LEASES!r}")
    return Plan(
        leader_name=lease,
        leaders=tuple(_leader(entry) for entry in section.sections("controllerLeaders")),
    )


def write(plan: Plan) -> dict[str, Any]:
    """The plan as `take` reads it."""
    return {
        "leaderName": plan.leader_name,
        "resourceLock": _LEASES,
        "controllerLeaders": [
            {"name": leader.name, "component": leader.component} for leader in plan.leaders
        ],
    }


def _leader(section: documents.Section) -> Leader:
    leader = Leader(name=section.text("name"), component=section.text("component"))
    for name, value in (("name", leader.name), ("component", leader.component)):
        if not value:
            section.fault(name, "is missing")
    section.done()
    return leader
