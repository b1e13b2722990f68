"""Metadata, references and keys of all objects, and the base of every wire type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ccm.base.parsing import parse_digits
from ccm.model import names

EMPTY: Mapping[str, str] = {}


class Wire(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False, kw_only=True):
    """Base of every type that is decoded from the API server.

    Types declare only the fields in use; the decoder skips other fields. Go writes `null` for empty
    lists and maps, so fields for lists and maps allow None. Objects form trees, so the garbage
    collector need not track them.
    """


def enum(*values: str) -> msgspec.Meta:
    """Return metadata that lists the allowed values of a field, for the schema of the CRD.

    The decoder accepts other values, too.
    """
    return msgspec.Meta(extra_json_schema={"enum": list(values)})


class OwnerReference(Wire, frozen=True, kw_only=True):
    """Reference from an object to its owner."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Wire, frozen=True, kw_only=True):
    """Metadata of an object; timestamps remain text (RFC 3339)."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[OwnerReference] | None = None


class ObjectReference(Wire, frozen=True, kw_only=True):
    """Reference to an object, as in events."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


class KubeObject(Wire, frozen=True, kw_only=True):
    """Object with metadata; `labels`, `annotations` and `finalizers` are empty instead of null."""

    metadata: ObjectMeta

    @property
    def name(self) -> str:
        """Name of the object."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Namespace of the object; empty for a cluster-scoped kind."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """UID of the object; a recreated object of the same name has another UID."""
        return self.metadata.uid

    @property
    def resource_version(self) -> str:
        """Version that the API server assigned to this state of the object; opaque."""
        return self.metadata.resource_version

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels; empty instead of null."""
        return self.metadata.labels or EMPTY

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations; empty instead of null."""
        return self.metadata.annotations or EMPTY

    @property
    def allows_deletion(self) -> bool:
        """Whether a user allows an otherwise blocked deletion, by `kube-ccm/allow-deletion`."""
        return self.annotations.get(names.ANNOTATION_ALLOW_DELETION) == "true"

    @property
    def finalizers(self) -> Sequence[str]:
        """Finalizers; empty instead of null."""
        return self.metadata.finalizers or ()

    @property
    def is_deleting(self) -> bool:
        """Whether the object is being deleted and waits for its finalizers."""
        return self.metadata.deletion_timestamp is not None

    def is_older_than(self, other: KubeObject) -> bool:
        """Return whether this is an earlier state of the object `other`; False also if unknown."""
        own, others = map(parse_digits, (self.resource_version, other.resource_version))
        return self.uid == other.uid and own is not None and others is not None and own < others

    lags_behind = is_older_than  # alias for one release

    @property
    def key(self) -> str:
        """Key in caches and work queues: `namespace/name`, or `name` for a cluster-scoped kind."""
        return object_key(self.metadata)


def object_key(metadata: ObjectMeta) -> str:
    """Return `namespace/name`, or `name` without a namespace."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
