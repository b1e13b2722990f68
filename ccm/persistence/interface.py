"""Interface of a persistence provider, and its values.

A provider serves one or more *instances* of storage, such as two databases or two buckets. Each
call names an instance; the daemon configures a single one. An object is identified by its group,
version, kind, and a key made of its namespace and name; its UID is not used.

A result of None, or omission from a list, always means that an object is *absent*. Every failure is
raised as an error of `ccm.persistence.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, NewType, Protocol, TypeAlias

from ccm.persistence.errors import BackendDead

ObjectKey = NewType("ObjectKey", str)
"""`<namespace>/<name>`, both encoded (`ccm.persistence.objects`), with `_` for the cluster scope;
short and stable."""

Version = NewType("Version", str)
"""Opaque version of a stored object; changes with each write."""


class Absent(Enum):
    """Precondition of a write: the object must not exist."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT

Expected: TypeAlias = "Version | Absent | None"
"""Precondition of a write: the stored version, `ABSENT`, or None for an unconditional write."""

CAS = "cas"
"""Capability: `put_versioned` enforces its precondition `expect`."""

FENCING = "fencing"
"""Capability: a former leader can no longer write."""

SHARED = "shared"
"""Capability: the next leader can use the same storage from any machine."""


class GVK(NamedTuple):
    """Group, version and kind; the group is empty for the core API."""

    group: str
    version: str
    kind: str

    @classmethod
    def of(cls, api_version: str, kind: str) -> GVK:
        """Build from the fields `apiVersion` and `kind` of an object."""
        group, _, version = api_version.rpartition("/")
        return cls(group, version, kind)

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects of this kind."""
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineId:
    """Identity of an installation of the daemon; every replica has the same one.

    Despite its name, it identifies no host and no Pod.

    Attributes:
        cluster_uid: UID of the namespace `kube-system`.
        name: `--cluster-name`.
    """

    cluster_uid: str
    name: str


def new_machine_id(cluster_uid: str, name: str) -> MachineId:
    """Build the identity of an installation.

    Raises:
        ValueError: a part is empty, so two clusters could have the same identity.
    """
    for field, value in (("cluster_uid", cluster_uid), ("name", name)):
        if not value.strip():
            raise ValueError(f"{field} of a machine ID must not be empty")
    return MachineId(cluster_uid=cluster_uid, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceProviderStatus:
    """Status of an instance.

    Attributes:
        instance_exists: False = the instance is not configured, so callers must stop using its
            name.
        status: whether the instance is up; False = callers should start no operation on it.
        mean_persist_latency: mean seconds from request to completed transaction, over the
            last 256 successful writes and deletes; 0 if there were none.
    """

    instance_exists: bool
    status: bool = False
    mean_persist_latency: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the status with JSON field names; a False status and zero latency are omitted."""
        return self._to_fields("mean_persist_latency")

    def to_yaml(self) -> dict[str, Any]:
        """Return the status with YAML field names; omits the same fields as `to_json`."""
        return self._to_fields("meanPersistLatency")

    def _to_fields(self, latency: str) -> dict[str, Any]:
        fields: dict[str, Any] = {"exists": self.instance_exists}
        if self.status:
            fields["status"] = True
        if self.mean_persist_latency:
            fields[latency] = self.mean_persist_latency
        return fields


class PersistenceProvider(Protocol):
    """Interface of every provider; its methods may be called concurrently."""

    async def initialize(self, machine_id: MachineId) -> None:
        """Open all instances and check that they are writable; only the leader may call this.

        An unreachable instance is retried later, unless all are unreachable.

        Raises:
            BackendDead: no instance is usable, or a store belongs to another cluster. All other
                calls raise this error too, until another call of `initialize` succeeds.
        """

    def instances(self) -> Sequence[str]:
        """Return all configured instances, up or down, in a fixed order; makes no requests."""

    async def instance_status(self, instance: str) -> PersistenceProviderStatus:
        """Return the status from memory: within 50 ms, even if the store hangs. Never raises."""

    async def put_object(self, instance: str, obj: Mapping[str, Any]) -> ObjectKey:
        """Store an object, replacing its former copy; it is durable when this method returns.

        Idempotent: a retry is safe after any error.
        """

    async def delete_object(self, instance: str, kind: GVK, key: ObjectKey) -> None:
        """Delete an object permanently; succeed if it is absent."""

    async def get_object(self, instance: str, kind: GVK, key: ObjectKey) -> dict[str, Any] | None:
        """Return an object as a new copy that the caller may change; None if it is absent."""

    async def get_all_objects(self, instance: str, kind: GVK) -> list[dict[str, Any]]:
        """Return all undamaged objects of exactly this group, version and kind, in any order."""

    async def close(self) -> None:
        """Wait for in-flight writes and release all resources; idempotent."""


class VersionedPersistence(PersistenceProvider, Protocol):
    """Optional interface of a provider: conditional writes."""

    def capabilities(self, instance: str) -> frozenset[str]:
        """Return the capabilities of an instance: a subset of `CAS`, `FENCING` and `SHARED`.

        A capability that depends on the storage service is included only if a test of the service
        succeeded. Deletions are never conditional: some S3 services do not support that.
        """

    async def put_versioned(
        self, instance: str, obj: Mapping[str, Any], *, expect: Expected
    ) -> tuple[ObjectKey, Version]:
        """Store an object if the precondition holds.

        Raises:
            VersionConflict: the precondition failed, or the store cannot enforce preconditions.
        """

    async def get_versioned(
        self, instance: str, kind: GVK, key: ObjectKey
    ) -> tuple[dict[str, Any], Version] | None:
        """Return an object and its version; None if it is absent."""

    def iter_objects(
        self, instance: str, kind: GVK
    ) -> AsyncIterator[tuple[ObjectKey, dict[str, Any], Version]]:
        """Iterate over all undamaged objects of a kind, with one page in memory at a time."""


METHODS = tuple(name for name in vars(PersistenceProvider) if not name.startswith("_"))


def require(backend: str, provider: object, methods: Sequence[str] = METHODS) -> None:
    """Check at the start, not at the first write, that a provider has all methods.

    Raises:
        BackendDead: methods are missing; the message names the backend and the methods.
    """
    missing = [name for name in methods if not callable(getattr(provider, name, None))]
    if missing:
        raise BackendDead(
            f"persistence backend {backend!r} lacks the method {', '.join(missing)}; "
            "install a version for this kube-ccm"
        )
