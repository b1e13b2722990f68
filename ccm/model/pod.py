"""Pod: what decides whether and how it is evicted, and what it uses."""

from __future__ import annotations

from ccm.model import names
from ccm.model.meta import KubeObject, ObjectMeta, Wire

GRACE_S = 30
"""Grace of a Pod that states none (Kubernetes API)."""


class ClaimSource(Wire, frozen=True, kw_only=True):
    """A volume that is a PersistentVolumeClaim of the Pod's namespace."""

    claim_name: str = ""


class PodVolume(Wire, frozen=True, kw_only=True):
    """One volume; of kinds other than a claim nothing is read."""

    persistent_volume_claim: ClaimSource | None = None


class PodSpec(Wire, frozen=True, kw_only=True):
    """What is wanted of a Pod."""

    node_name: str = ""
    priority: int | None = None
    termination_grace_period_seconds: int | None = None
    volumes: list[PodVolume] | None = None


class Pod(KubeObject, frozen=True, kw_only=True):
    """What runs on a node."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()

    @property
    def is_mirror(self) -> bool:
        """Whether it only shows what a kubelet runs by itself; deleting it ends nothing."""
        return names.ANNOTATION_MIRROR in self.annotations

    @property
    def controller(self) -> str:
        """The kind of what makes it anew when it goes; empty when nothing does."""
        owners = self.metadata.owner_references or ()
        return next((one.kind for one in owners if one.controller), "")

    @property
    def grace_s(self) -> int:
        """Seconds that it may take to end."""
        stated = self.spec.termination_grace_period_seconds
        return GRACE_S if stated is None else max(0, stated)

    @property
    def priority(self) -> int:
        """The higher, the more it matters; 0 where none is stated."""
        return self.spec.priority or 0

    @property
    def claims(self) -> tuple[str, ...]:
        """Names of the PersistentVolumeClaims that it uses, in its namespace."""
        found = (one.persistent_volume_claim for one in self.spec.volumes or ())
        return tuple(one.claim_name for one in found if one is not None and one.claim_name)
