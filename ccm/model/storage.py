"""PersistentVolumeClaims, PersistentVolumes, VolumeAttachments, and the volumes of a Node."""

from __future__ import annotations

from typing import Any

import msgspec

from ccm.model.meta import KubeObject, ObjectMeta, Wire


class ClaimSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a claim; `volume_name` is empty until the claim is bound."""

    volume_name: str = ""


class PersistentVolumeClaim(KubeObject, frozen=True, kw_only=True):
    """PersistentVolumeClaim, with only the name of its volume."""

    metadata: ObjectMeta
    spec: ClaimSpec = ClaimSpec()


class PersistentVolume(KubeObject, frozen=True, kw_only=True):
    """PersistentVolume; its spec stays a plain mapping, which the machine driver reads."""

    metadata: ObjectMeta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class AttachmentSource(Wire, frozen=True, kw_only=True):
    """Volume of a VolumeAttachment."""

    persistent_volume_name: str = ""


class AttachmentSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a VolumeAttachment: volume and node."""

    node_name: str = ""
    source: AttachmentSource = AttachmentSource()


class AttachmentStatus(Wire, frozen=True, kw_only=True):
    """Observed state of a VolumeAttachment."""

    attached: bool = False


class VolumeAttachment(KubeObject, frozen=True, kw_only=True):
    """Attachment of a volume to a node, existing or desired."""

    metadata: ObjectMeta
    spec: AttachmentSpec = AttachmentSpec()
    status: AttachmentStatus = AttachmentStatus()


class AttachedVolume(Wire, frozen=True, kw_only=True):
    """Volume that is attached to a node; the name contains the volume's ID in the cloud."""

    name: str = ""


class VolumesStatus(Wire, frozen=True, kw_only=True):
    """Volumes in the status of a node."""

    volumes_attached: list[AttachedVolume] | None = None


class NodeVolumes(KubeObject, frozen=True, kw_only=True):
    """Node with only its volumes, a separate type because they are rarely needed."""

    metadata: ObjectMeta
    status: VolumesStatus = VolumesStatus()

    @property
    def attached(self) -> tuple[str, ...]:
        """Names of the attached volumes."""
        return tuple(volume.name for volume in self.status.volumes_attached or ())
