"""What is stored around an object: enough to know that it is whole, ours, and where it belongs."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ccm.base import clock
from ccm.persistence.errors import BackendDead, CorruptObject
from ccm.persistence.interface import Stamp, Stamped, Version
from ccm.persistence.objects import Place, canonical

FORMAT = 1
"""Of envelopes and markers; a higher one was written by a newer version of us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Who writes.

    Attributes:
        identity: of the leader.
        epoch: how often the Lease changed hands; a lower one is over. 0 without an election.
    """

    identity: str = ""
    epoch: int = 0


class Stamps:
    """Makes stamps, each higher than all before, also than those before a restart."""

    def __init__(self) -> None:
        self._counter = 0

    def next(self, epoch: int) -> Stamp:
        """One more; the time is its floor."""
        self._counter = max(self._counter + 1, int(clock.now().timestamp() * 1e6))
        return Stamp(epoch, self._counter)


class Entry(NamedTuple):
    """What a store is given to write.

    Attributes:
        body: the envelope.
        version: of this write; no other write has it.
        epoch: of the writer.
    """

    body: bytes
    version: Version
    epoch: int


class Head(NamedTuple):
    """What a store has to know of what it holds."""

    version: Version
    epoch: int


def sealed(
    place: Place, obj: bytes | None, stamp: Stamp, *, cluster_uid: str, writer: Writer
) -> Entry:
    """An object, its canonical bytes, with all around it; None: the mark of its deletion."""
    version, held = Version(str(uuid.uuid4())), b"null" if obj is None else obj
    around = {
        "clusterUID": cluster_uid,
        "format": FORMAT,
        "group": place.kind.group,
        "key": place.key,
        "kind": place.kind.kind,
        "revision": stamp.counter,
        "sha256": hashlib.sha256(held).hexdigest(),
        "stampEpoch": stamp.epoch,
        "version": place.kind.version,
        "writeId": version,
        "writer": {"epoch": writer.epoch, "identity": writer.identity},
        "writtenAt": clock.now().isoformat(),
    }
    # The object's bytes as they are: encoding them again would cost as much as all the rest.
    return Entry(canonical(around)[:-1] + b',"object":' + held + b"}", version, writer.epoch)


def opened(place: Place, body: bytes, cluster_uid: str) -> Stamped:
    """What an envelope holds; it was found at that place.

    Raises:
        CorruptObject: it is damaged, or belongs to another place.
    """
    found = _read(body)
    expected = {
        "clusterUID": cluster_uid,
        "group": place.kind.group,
        "version": place.kind.version,
        "kind": place.kind.kind,
        "key": place.key,
    }
    for field, value in expected.items():
        if found.get(field) != value:
            raise CorruptObject(f"what is stored names another {field} than its place")
    obj = found.get("object")
    if hashlib.sha256(canonical(obj)).hexdigest() != found.get("sha256"):
        raise CorruptObject("what is stored has another checksum than was written")
    if obj is not None and not isinstance(obj, dict):
        raise CorruptObject("what is stored is no object")
    epoch, counter = found.get("stampEpoch"), found.get("revision")
    if not isinstance(epoch, int) or not isinstance(counter, int):
        raise CorruptObject("what is stored has no stamp")
    return Stamped(obj, Stamp(epoch, counter))


def head(body: bytes) -> Head:
    """Its version and epoch; of damaged bytes their digest, so that they can be replaced."""
    try:
        found = _read(body)
        return Head(Version(str(found["writeId"])), int(found["writer"]["epoch"]))
    except (CorruptObject, KeyError, TypeError, ValueError):
        return Head(Version(hashlib.sha256(body).hexdigest()), 0)


def _read(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise CorruptObject("what is stored is no JSON") from None
    if not isinstance(found, dict):
        raise CorruptObject("what is stored is no envelope")
    if found.get("format") != FORMAT:
        raise CorruptObject(f"what is stored has another format than {FORMAT}")
    return found


def marker(cluster_uid: str) -> bytes:
    """What says whose storage this is; written once, when it is first opened."""
    said = {"clusterUID": cluster_uid, "createdAt": clock.now().isoformat(), "format": FORMAT}
    return canonical(said)


def check_marker(body: bytes, cluster_uid: str, where: str) -> None:
    """See that the storage is ours.

    Raises:
        BackendDead: it belongs to another cluster, or a newer version of us wrote it.
    """
    try:
        found: Any = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, Mapping) or not isinstance(found.get("format"), int):
        raise BackendDead(f"{where}: its marker is damaged; see the recovery guide")
    if found["format"] > FORMAT:
        raise BackendDead(
            f"{where}: written in format {found['format']}, this version reads up to {FORMAT}; "
            "upgrade, or give it other storage"
        )
    if found.get("clusterUID") != cluster_uid:
        raise BackendDead(
            f"{where}: belongs to the cluster {found.get('clusterUID')}, this is {cluster_uid}; "
            "give each cluster storage of its own"
        )
