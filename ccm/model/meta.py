"""What all objects share: metadata, references, keys; and the base of every wire type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ccm.base.parsing import parse_digits
from ccm.model import names

EMPTY: Mapping[str, str] = {}


class Wire(
    msgspec.Struct,
    rename="camel",
    omit_defaults=True,
    frozen=True,
    gc=False,
    kw_only=True,
):
    """Base of every type that comes from the API server.

    Only the fields we use are named; others are skipped while decoding. Go writes
    `null` for empty lists and maps, so each of those is optional. Objects form trees,
    which makes switching off the garbage collector's tracking safe.
    """


def enum(*values: str) -> msgspec.Meta:
    """Return the values of a field for its schema in a CRD; decoding accepts others, too."""
    return msgspec.Meta(extra_json_schema={"enum": list(values)})


class OwnerReference(Wire, frozen=True, kw_only=True):
    """Who owns an object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Wire, frozen=True, kw_only=True):
    """Metadata of an object; timestamps stay text (RFC 3339)."""

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
    """A pointer to an object, as events carry it."""

    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    resource_version: str = ""
    field_path: str = ""


class KubeObject(Wire, frozen=True, kw_only=True):
    """An object with metadata; `labels` and `annotations` read as empty when null."""

    metadata: ObjectMeta

    @property
    def name(self) -> str:
        """The object's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The object's namespace; empty for a cluster-scoped kind."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """The object's UID: differs when an object is re-created under the same name."""
        return self.metadata.uid

    @property
    def resource_version(self) -> str:
        """The version the server gave this state; opaque."""
        return self.metadata.resource_version

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels; empty when there are none."""
        return self.metadata.labels or EMPTY

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations; empty when there are none."""
        return self.metadata.annotations or EMPTY

    @property
    def allows_deletion(self) -> bool:
        """Whether a person annotated it so that a deletion held back is made after all."""
        return self.annotations.get(names.ANNOTATION_ALLOW_DELETION) == "true"

    @property
    def finalizers(self) -> Sequence[str]:
        """Finalizers; empty when there are none."""
        return self.metadata.finalizers or ()

    @property
    def is_deleting(self) -> bool:
        """Whether deletion was asked for and waits for finalizers."""
        return self.metadata.deletion_timestamp is not None

    def lags_behind(self, other: KubeObject) -> bool:
        """Whether this is an earlier state of the same object; unknown versions never are."""
        own, others = map(parse_digits, (self.resource_version, other.resource_version))
        return self.uid == other.uid and own is not None and others is not None and own < others

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` for a cluster-scoped kind: the work-queue key."""
        return object_key(self.metadata)


def object_key(metadata: ObjectMeta) -> str:
    """`namespace/name`, or `name` without a namespace."""
    return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
