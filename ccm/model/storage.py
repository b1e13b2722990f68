"""PersistentVolumeClaims, PersistentVolumes, VolumeAttachments, and the volumes of a Node."""

from __future__ import annotations

from typing import Any

import msgspec

from ccm.model.meta import KubeObject, ObjectMeta, Wire


class ClaimSpec(Wire, frozen=True, kw_only=True):
    """Desired state of a claim; has the name of the volume once it is bound."""

    volume_name: str = ""


class PersistentVolumeClaim(KubeObject, frozen=True, kw_only=True):
    """Claim of a namespace to a volume."""

    metadata: ObjectMeta
    spec: ClaimSpec = ClaimSpec()


class PersistentVolume(KubeObject, frozen=True, kw_only=True):
    """Volume; its spec stays a plain mapping, which the driver reads."""

    metadata: ObjectMeta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class AttachmentSource(Wire, frozen=True, kw_only=True):
    """Volume of an attachment."""

    persistent_volume_name: str = ""


class AttachmentSpec(Wire, frozen=True, kw_only=True):
    """Volume of an attachment, and the node to attach it to."""

    node_name: str = ""
    source: AttachmentSource = AttachmentSource()


class AttachmentStatus(Wire, frozen=True, kw_only=True):
    """Observed state of an attachment."""

    attached: bool = False


class VolumeAttachment(KubeObject, frozen=True, kw_only=True):
    """Attachment of a volume to a node, existing or desired."""

    metadata: ObjectMeta
    spec: AttachmentSpec = AttachmentSpec()
    status: AttachmentStatus = AttachmentStatus()


class AttachedVolume(Wire, frozen=True, kw_only=True):
    """Volume that is attached to a node; the name contains its cloud ID."""

    name: str = ""


class VolumesStatus(Wire, frozen=True, kw_only=True):
    """Volumes in the status of a node."""

    volumes_attached: list[AttachedVolume] | None = None


class NodeVolumes(KubeObject, frozen=True, kw_only=True):
    """Node reduced to its volumes, which are rarely needed."""

    metadata: ObjectMeta
    status: VolumesStatus = VolumesStatus()

    @property
    def attached(self) -> tuple[str, ...]:
        """Names of the attached volumes."""
        return tuple(volume.name for volume in self.status.volumes_attached or ())
