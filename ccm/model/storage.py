"""Volumes: from a claim to the volume, and to the nodes that it is attached to."""

from __future__ import annotations

from typing import Any

import msgspec

from ccm.model.meta import KubeObject, ObjectMeta, Wire


class ClaimSpec(Wire, frozen=True, kw_only=True):
    """What a claim asks for; the volume's name once it is bound."""

    volume_name: str = ""


class PersistentVolumeClaim(KubeObject, frozen=True, kw_only=True):
    """A volume that a namespace asks for."""

    metadata: ObjectMeta
    spec: ClaimSpec = ClaimSpec()


class PersistentVolume(KubeObject, frozen=True, kw_only=True):
    """A volume; the spec stays as it is, for the driver to read."""

    metadata: ObjectMeta
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class AttachmentSource(Wire, frozen=True, kw_only=True):
    """What is attached."""

    persistent_volume_name: str = ""


class AttachmentSpec(Wire, frozen=True, kw_only=True):
    """What is to be attached where."""

    node_name: str = ""
    source: AttachmentSource = AttachmentSource()


class AttachmentStatus(Wire, frozen=True, kw_only=True):
    """Whether it is."""

    attached: bool = False


class VolumeAttachment(KubeObject, frozen=True, kw_only=True):
    """That a volume is attached to a node, or shall be."""

    metadata: ObjectMeta
    spec: AttachmentSpec = AttachmentSpec()
    status: AttachmentStatus = AttachmentStatus()


class AttachedVolume(Wire, frozen=True, kw_only=True):
    """A volume that a node has; its name holds the ID by which the cloud knows it."""

    name: str = ""


class VolumesStatus(Wire, frozen=True, kw_only=True):
    """What a node reports about its volumes."""

    volumes_attached: list[AttachedVolume] | None = None


class NodeVolumes(KubeObject, frozen=True, kw_only=True):
    """A Node reduced to its volumes: most of the time nobody reads them of any node."""

    metadata: ObjectMeta
    status: VolumesStatus = VolumesStatus()

    @property
    def attached(self) -> tuple[str, ...]:
        """Names of the volumes that are attached to it."""
        return tuple(one.name for one in self.status.volumes_attached or ())
