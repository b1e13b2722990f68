"""Envelope of a stored object: metadata that proves its integrity, cluster, kind and key."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ccm.base import clock
from ccm.persistence.errors import BackendDead, CorruptObject
from ccm.persistence.interface import Version
from ccm.persistence.objects import StoragePlace, to_canonical_json

FORMAT = 1
"""Format version of envelopes and markers; a newer daemon may write a higher version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterIdentity:
    """Identity of the writing process.

    Attributes:
        identity: identity of the leader in the Lease.
        epoch: `leaseTransitions` of the Lease: a leader with a lower number is outdated. 0 without
            leader election.
        lease: `namespace/name` of the Lease, which distinguishes daemons of one cluster; empty =
            no daemon, but a command that may use the storage of any.
    """

    identity: str = ""
    epoch: int = 0
    lease: str = ""


class StoreEntry(NamedTuple):
    """Argument of a store's write.

    Attributes:
        body: the envelope.
        version: unique ID of this write.
        epoch: epoch of the writer.
    """

    body: bytes
    version: Version
    epoch: int


class EnvelopeHead(NamedTuple):
    """Version and epoch of a stored envelope."""

    version: Version
    epoch: int


def seal(
    place: StoragePlace, obj: bytes, *, cluster_uid: str, writer: WriterIdentity
) -> StoreEntry:
    """Wrap the canonical bytes of an object in an envelope."""
    version = Version(str(uuid.uuid4()))
    metadata = {
        "clusterUID": cluster_uid,
        "format": FORMAT,
        "group": place.kind.group,
        "key": place.key,
        "kind": place.kind.kind,
        "sha256": hashlib.sha256(obj).hexdigest(),
        "version": place.kind.version,
        "writeId": version,
        "writer": {"epoch": writer.epoch, "identity": writer.identity},
        "writtenAt": clock.now().isoformat(),
    }
    # The canonical bytes are inserted as they are: encoding them again would double the cost.
    return StoreEntry(
        to_canonical_json(metadata)[:-1] + b',"object":' + obj + b"}", version, writer.epoch
    )


def unseal(place: StoragePlace, body: bytes, cluster_uid: str) -> dict[str, Any]:
    """Return the object in the envelope that was read from a place.

    Raises:
        CorruptObject: the envelope is damaged, or belongs to another cluster, kind or key.
    """
    envelope = _read(body)
    expected = {
        "clusterUID": cluster_uid,
        "group": place.kind.group,
        "version": place.kind.version,
        "kind": place.kind.kind,
        "key": place.key,
    }
    for field, value in expected.items():
        if envelope.get(field) != value:
            raise CorruptObject(f"the stored object does not have the {field} of its place")
    obj = envelope.get("object")
    if hashlib.sha256(to_canonical_json(obj)).hexdigest() != envelope.get("sha256"):
        raise CorruptObject("the stored object does not match its checksum")
    if not isinstance(obj, dict):
        raise CorruptObject("the stored value is not an object")
    return obj


def read_head(body: bytes) -> EnvelopeHead:
    """Return version and epoch of an envelope.

    For damaged bytes, the version is their SHA-256 digest and the epoch is 0, so that a write can
    replace them.
    """
    try:
        envelope = _read(body)
        return EnvelopeHead(Version(str(envelope["writeId"])), int(envelope["writer"]["epoch"]))
    except (CorruptObject, KeyError, TypeError, ValueError):
        return EnvelopeHead(Version(hashlib.sha256(body).hexdigest()), 0)


def _read(body: bytes) -> dict[str, Any]:
    try:
        envelope = json.loads(body)
    except (ValueError, RecursionError):
        raise CorruptObject("the stored object is not JSON") from None
    if not isinstance(envelope, dict):
        raise CorruptObject("the stored object is not an envelope")
    if envelope.get("format") != FORMAT:
        raise CorruptObject(f"the stored object does not have format {FORMAT}")
    return envelope


def build_marker(cluster_uid: str) -> bytes:
    """Return the marker that names the owning cluster; a store writes it at its first `open`."""
    content = {"clusterUID": cluster_uid, "createdAt": clock.now().isoformat(), "format": FORMAT}
    return to_canonical_json(content)


def check_marker(body: bytes, cluster_uid: str, where: str, lease: str = "") -> None:
    """Check that the storage belongs to the cluster, and to the daemon of the Lease.

    A marker without a Lease fits every daemon: an earlier version or a command wrote it.

    Raises:
        BackendDead: the storage belongs to another cluster or daemon, has a newer format or a
            damaged marker.
    """
    try:
        content: Any = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, Mapping) or not isinstance(content.get("format"), int):
        raise BackendDead(f"{where}: the storage marker is damaged; see the recovery guide")
    if content["format"] > FORMAT:
        raise BackendDead(
            f"{where}: written in format {content['format']}, this version reads up to {FORMAT}; "
            "upgrade kube-ccm, or configure other storage"
        )
    if content.get("clusterUID") != cluster_uid:
        raise BackendDead(
            f"{where}: belongs to the cluster {content.get('clusterUID')}, not to {cluster_uid}; "
            "configure separate storage for each cluster"
        )
    # The epochs of two Leases cannot be compared: each daemon would fence the other for ever.
    if lease and (owner := content.get("lease", lease)) != lease:
        raise BackendDead(
            f"{where}: belongs to the daemon of the Lease {owner}, not of {lease}; configure "
            "another prefix, table, path or namespace for each daemon; if the Lease was renamed, "
            "see the recovery guide"
        )


def epoch_of(marker: bytes) -> int:
    """Return the epoch in a marker; 0 if the marker is damaged.

    With 0, the marker fences no writer; the epoch in the envelope of each object still does.
    """
    try:
        return int(json.loads(marker)["epoch"])
    except (KeyError, TypeError, ValueError):
        return 0
