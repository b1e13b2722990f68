"""Sets of machines and the deployments over them, in neutral terms. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from ccm.machines.replicas import Member
from ccm.model import ObjectMeta


class Strategy(Enum):
    """How the machines of a deployment are exchanged for others."""

    ROLLING = "RollingUpdate"
    RECREATE = "Recreate"
    IN_PLACE = "InPlaceUpdate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What machines are made of.

    Attributes:
        essence: what decides which machines are alike, as text; where it differs they are
            exchanged.
        rest: what else there is, as text; it is only copied.
        whole: the template as the front has it.
    """

    essence: str
    rest: str = ""
    whole: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A condition of a deployment.

    Attributes:
        type: which.
        status: True, False or Unknown.
        reason: in one word.
        message: for people.
        updated: when it was written.
        since: since when it has this status.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    updated: datetime | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetView:
    """A set of machines alike.

    Attributes:
        metadata: of the object.
        created: when the object was made.
        replicas: how many are wanted.
        template: what they are made of.
        members: those that it controls, all of them.
        failures: conditions that say that it cannot make or delete machines.
        failed: machines that failed, as the front says so.
        has_seen: whether it knows how many are wanted; what it made before may not be seen yet.
    """

    metadata: ObjectMeta
    created: datetime
    replicas: int
    template: Template
    members: Sequence[Member] = ()
    failures: Sequence[Condition] = ()
    failed: Sequence[Any] = ()
    has_seen: bool = True

    @property
    def name(self) -> str:
        """Of the object."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """Of the object."""
        return self.metadata.uid

    @property
    def is_deleting(self) -> bool:
        """Whether its deletion was asked for."""
        return self.metadata.deletion_timestamp is not None

    @property
    def is_active(self) -> bool:
        """Whether machines of it are wanted."""
        return self.replicas > 0 and not self.is_deleting

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the object."""
        return self.metadata.annotations or {}

    @property
    def age(self) -> tuple[datetime, str]:
        """Sorts the oldest first."""
        return (self.created, self.name)

    @property
    def live(self) -> Sequence[Member]:
        """Those whose deletion nobody asked for."""
        return [one for one in self.members if not one.machine.is_ending]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentStatus:
    """What is known of a deployment.

    Attributes:
        observed: generation of the deployment when this was written.
        replicas: machines that are there.
        updated: those made of the newest template.
        ready: those that run.
        available: those that have worked for long enough.
        preserved: those that failed and are kept.
        unavailable: those that are missing.
        conditions: of the deployment; those of others among them.
        collisions: how often the name of a set was taken.
        failed: machines that failed, as the front says so.
    """

    observed: int = 0
    replicas: int = 0
    updated: int = 0
    ready: int = 0
    available: int = 0
    preserved: int = 0
    unavailable: int = 0
    conditions: Sequence[Condition] = ()
    collisions: int | None = None
    failed: Sequence[Any] = ()

    def condition(self, kind: str) -> Condition | None:
        """The condition of that type."""
        return next((one for one in self.conditions if one.type == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """Machines alike, and how they are exchanged for others.

    Attributes:
        metadata: of the object.
        replicas: how many are wanted.
        template: what they are made of.
        strategy: how they are exchanged; None where that makes no sense.
        max_surge: most above the replicas; a number, or a percentage of them.
        max_unavailable: most that may be missing; likewise.
        is_manual: somebody else says which machine is updated in place.
        is_paused: nothing is exchanged meanwhile.
        min_ready_s: how long a machine has to work to be available.
        deadline_s: after how long without progress that is said; None = never.
        history_limit: old sets that are kept; None = all.
        rollback_to: the revision to go back to, 0 the one before; None = no wish.
        faults: why nothing can be done about it, one sentence each.
        status: what was said of it.
    """

    metadata: ObjectMeta
    replicas: int
    template: Template
    strategy: Strategy | None = Strategy.ROLLING
    max_surge: int | str = 0
    max_unavailable: int | str = 0
    is_manual: bool = False
    is_paused: bool = False
    min_ready_s: float = 0.0
    deadline_s: float | None = None
    history_limit: int | None = None
    rollback_to: int | None = None
    faults: Sequence[str] = ()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def name(self) -> str:
        """Of the object."""
        return self.metadata.name

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the object."""
        return self.metadata.annotations or {}
