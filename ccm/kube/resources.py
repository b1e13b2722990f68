"""The table of kinds we talk about: where each lives on the server and how it is decoded.

A new kind is one line here and one type in `ccm.model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, cast
from urllib.parse import quote

import msgspec

from ccm.model import (
    ConfigMap,
    CustomResourceDefinition,
    Event,
    Lease,
    Namespace,
    Node,
    NodeVolumes,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    Secret,
    Service,
    VolumeAttachment,
)
from ccm.model.meta import KubeObject, ObjectMeta, ObjectReference, Wire

T = TypeVar("T", bound=KubeObject)


class ListMeta(Wire, frozen=True, kw_only=True):
    """What a list says about itself."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class RawList(Wire, frozen=True, kw_only=True):
    """A page whose items are left undecoded."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class ItemList(Wire, Generic[T], frozen=True, kw_only=True):
    """A page of decoded items."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class Change(Wire, Generic[T], frozen=True, kw_only=True):
    """One line of a watch about an object; ends and faults of a watch have other types."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: T


class Envelope(Wire, frozen=True, kw_only=True):
    """One line of a watch; the object stays undecoded until the type is known."""

    type: str
    object: msgspec.Raw


class Bookmark(Wire, frozen=True, kw_only=True):
    """The object of a bookmark: a version, and perhaps an annotation."""

    metadata: ObjectMeta = ObjectMeta()


class NameMeta(Wire, frozen=True, kw_only=True):
    """The little metadata that is still read of an object we cannot decode."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""

    @property
    def key(self) -> str:
        """`namespace/name`, or `name` without a namespace; empty without a name."""
        return f"{self.namespace}/{self.name}" if self.namespace and self.name else self.name


class Named(Wire, frozen=True, kw_only=True):
    """An object reduced to its name and version."""

    metadata: NameMeta = NameMeta()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind(Generic[T]):
    """One kind of object.

    Attributes:
        group: API group; empty for the core group.
        version: API version, such as `v1`.
        plural: resource name in paths, such as `nodes`.
        kind: as written in `kind:`.
        namespaced: whether objects live in a namespace.
        type: the type that controllers use.
        document: the type of the JSON document, where it is another.
        convert: converts a document to `type`, as Kubernetes converts the versions of an API group
            to one internal type.
        complete: True when `type` names every field of the kind, so that an object may
            be written back as a whole (PUT) without erasing what we did not read.
    """

    group: str = ""
    version: str = "v1"
    plural: str
    kind: str
    namespaced: bool
    type: type[T]
    document: Any = None
    convert: Callable[[Any], T] | None = None
    complete: bool = False
    one: msgspec.json.Decoder[Any] = field(init=False, repr=False)
    page: msgspec.json.Decoder[ItemList[Any]] = field(init=False, repr=False)
    change: msgspec.json.Decoder[Change[Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        document = self.document or self.type
        page_type, change_type = (cast("Any", one)[document] for one in (ItemList, Change))
        object.__setattr__(self, "one", msgspec.json.Decoder(document))
        object.__setattr__(self, "page", msgspec.json.Decoder(page_type))
        object.__setattr__(self, "change", msgspec.json.Decoder(change_type))

    def decode(self, body: bytes | msgspec.Raw) -> T:
        """Decode one object, and convert it."""
        return self.converted(self.one.decode(body))

    def converted(self, document: Any) -> T:
        """Return a decoded document as the type that controllers use."""
        return cast("T", document) if self.convert is None else self.convert(document)

    @property
    def api_version(self) -> str:
        """As written in `apiVersion:`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def reference(self, obj: KubeObject) -> ObjectReference:
        """Return the reference by which an Event names an object of the kind."""
        return ObjectReference(
            kind=self.kind,
            api_version=self.api_version,
            namespace=obj.namespace,
            name=obj.name,
            uid=obj.uid,
        )

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The encoded path of a collection, an object or a subresource.

        An empty namespace means all of them, or a kind that has none.
        """
        root = f"/apis/{self.group}" if self.group else "/api"
        parts = [f"{root}/{self.version}"]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


def _kind(
    type_: type[T], plural: str, *, group: str = "", namespaced: bool = True, complete: bool = False
) -> Kind[T]:
    """Return the kind that has the name of its type."""
    return Kind(
        group=group,
        plural=plural,
        kind=type_.__name__,
        namespaced=namespaced,
        type=type_,
        complete=complete,
    )


NODES = _kind(Node, "nodes", namespaced=False)
SERVICES = _kind(Service, "services")
LEASES = _kind(Lease, "leases", group="coordination.k8s.io", complete=True)
CONFIG_MAPS = _kind(ConfigMap, "configmaps")
EVENTS = _kind(Event, "events")
NAMESPACES = _kind(Namespace, "namespaces", namespaced=False)
SECRETS = _kind(Secret, "secrets")
NODE_VOLUMES = Kind(plural="nodes", kind="Node", namespaced=False, type=NodeVolumes)
"""Nodes again, with the volumes of each."""

PODS = _kind(Pod, "pods")
CLAIMS = _kind(PersistentVolumeClaim, "persistentvolumeclaims")
VOLUMES = _kind(PersistentVolume, "persistentvolumes", namespaced=False)
ATTACHMENTS = _kind(VolumeAttachment, "volumeattachments", group="storage.k8s.io", namespaced=False)
BUDGETS = _kind(PodDisruptionBudget, "poddisruptionbudgets", group="policy")
CRDS = _kind(
    CustomResourceDefinition,
    "customresourcedefinitions",
    group="apiextensions.k8s.io",
    namespaced=False,
)
