"""Kinds of objects: their paths on the API server and their decoders.

A new kind needs one line here and one type in `ccm.model`.
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
from ccm.model.certificates import CertificateSigningRequest
from ccm.model.meta import KubeObject, ObjectMeta, ObjectReference, Wire

T = TypeVar("T", bound=KubeObject)


class ListMeta(Wire, frozen=True, kw_only=True):
    """Metadata of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class RawList(Wire, frozen=True, kw_only=True):
    """Page of a list with undecoded items."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class ItemList(Wire, Generic[T], frozen=True, kw_only=True):
    """Page of a list with decoded items."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class WatchChange(Wire, Generic[T], frozen=True, kw_only=True):
    """Line of a watch about a change of an object; not for bookmarks and errors."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: T


class Envelope(Wire, frozen=True, kw_only=True):
    """Line of a watch, with the object undecoded, because its form depends on `type`."""

    type: str
    object: msgspec.Raw


class Bookmark(Wire, frozen=True, kw_only=True):
    """Object of a bookmark: a resourceVersion, and in some bookmarks an annotation."""

    metadata: ObjectMeta = ObjectMeta()


class NameMeta(Wire, frozen=True, kw_only=True):
    """Metadata that is read from an object that cannot be decoded as a whole."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""

    @property
    def key(self) -> str:
        """Key `namespace/name`, or `name` without a namespace; empty without a name."""
        return f"{self.namespace}/{self.name}" if self.namespace and self.name else self.name


class NamedObject(Wire, frozen=True, kw_only=True):
    """Object reduced to its name, namespace and resourceVersion."""

    metadata: NameMeta = NameMeta()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResourceKind(Generic[T]):
    """Kind of objects.

    Attributes:
        group: API group; empty for the core group.
        version: API version, such as `v1`.
        plural: resource name in paths, such as `nodes`.
        kind: value of `kind:`, such as `Node`.
        namespaced: whether objects live in a namespace.
        type: type that controllers use.
        document: type of the JSON document, if it differs from `type`; else None.
        convert: converts a document to `type`, as Kubernetes converts the versions of an API group
            to one internal type; None = no conversion.
        has_status: whether the status is a subresource; else it is written with the object.
        complete: whether `type` has every field of the kind, so that replacing an object (PUT)
            erases no field.
    """

    group: str = ""
    version: str = "v1"
    plural: str
    kind: str
    namespaced: bool
    type: type[T]
    document: Any = None
    convert: Callable[[Any], T] | None = None
    has_status: bool = True
    complete: bool = False
    object_decoder: msgspec.json.Decoder[Any] = field(init=False, repr=False)
    page_decoder: msgspec.json.Decoder[ItemList[Any]] = field(init=False, repr=False)
    change_decoder: msgspec.json.Decoder[WatchChange[Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        document = self.document or self.type
        page_type, change_type = (
            cast("Any", wrapper)[document] for wrapper in (ItemList, WatchChange)
        )
        object.__setattr__(self, "object_decoder", msgspec.json.Decoder(document))
        object.__setattr__(self, "page_decoder", msgspec.json.Decoder(page_type))
        object.__setattr__(self, "change_decoder", msgspec.json.Decoder(change_type))

    def decode(self, body: bytes | msgspec.Raw) -> T:
        """Decode and convert one object."""
        return self.convert_document(self.object_decoder.decode(body))

    def convert_document(self, document: Any) -> T:
        """Convert a decoded document to the type that controllers use."""
        return cast("T", document) if self.convert is None else self.convert(document)

    @property
    def api_version(self) -> str:
        """Value of `apiVersion:`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def reference(self, obj: KubeObject) -> ObjectReference:
        """Return the reference from an Event to an object of the kind."""
        return ObjectReference(
            kind=self.kind,
            api_version=self.api_version,
            namespace=obj.namespace,
            name=obj.name,
            uid=obj.uid,
        )

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the percent-encoded path of a collection, an object or a subresource.

        The namespace is empty for all namespaces, and for a cluster-scoped kind.
        """
        root = f"/apis/{self.group}" if self.group else "/api"
        parts = [f"{root}/{self.version}"]
        if namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource and (self.has_status or subresource != "status"):
            parts.append(subresource)
        return "/".join(parts)


def _kind(
    type_: type[T], plural: str, *, group: str = "", namespaced: bool = True, complete: bool = False
) -> ResourceKind[T]:
    """Return a kind of objects; the name of the type is also the value of `kind:`."""
    return ResourceKind(
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
NODE_VOLUMES = ResourceKind(plural="nodes", kind="Node", namespaced=False, type=NodeVolumes)
"""Nodes with only the fields about volumes."""

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
CERTIFICATE_REQUESTS = _kind(
    CertificateSigningRequest,
    "certificatesigningrequests",
    group="certificates.k8s.io",
    namespaced=False,
)
