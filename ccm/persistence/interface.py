"""What a persistence provider offers; every value it takes and gives.

A provider serves one or more *instances* of storage: two directories, two buckets. It is asked
by the name of an instance and never decides between them; the manager does. An object is named
by its group, version, kind, and a key made of its namespace and name; its UID plays no part.

An *absent* object is None, or missing from a list, and nothing else: whatever went wrong is
raised (`ccm.persistence.errors`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, NewType, Protocol, TypeAlias

from ccm.persistence.errors import BackendDead

ObjectKey = NewType("ObjectKey", str)
"""`<namespace or _>/<name>`, both encoded (`ccm.persistence.objects`); small, meant to be kept."""

Version = NewType("Version", str)
"""Opaque; another one after each write."""


class Absent(Enum):
    """For `expect`: the object must not be there yet."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT

Expected: TypeAlias = "Version | Absent | None"
"""What a conditional write expects to find; None: it does not mind."""

CAS = "cas"
"""Capability: `put_versioned` keeps its `expect`."""

FENCING = "fencing"
"""Capability: who led earlier cannot write any more."""

SHARED = "shared"
"""Capability: the next leader finds it, on whatever machine it runs."""


class GVK(NamedTuple):
    """Group, version and kind; the core group is empty."""

    group: str
    version: str
    kind: str

    @classmethod
    def of(cls, api_version: str, kind: str) -> GVK:
        """From the two fields of an object."""
        group, _, version = api_version.rpartition("/")
        return cls(group, version, kind)

    @property
    def api_version(self) -> str:
        """As an object has it."""
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineId:
    """Which installation this is: never a pod or a host, or the next leader would find nothing.

    Attributes:
        cluster_uid: UID of the namespace `kube-system`.
        name: `--cluster-name`.
    """

    cluster_uid: str
    name: str


def new_machine_id(cluster_uid: str, name: str) -> MachineId:
    """The identity of an installation.

    Raises:
        ValueError: a part is empty, so that two clusters would be taken for one.
    """
    for field, value in (("cluster_uid", cluster_uid), ("name", name)):
        if not value.strip():
            raise ValueError(f"{field} of a machine id must not be empty")
    return MachineId(cluster_uid=cluster_uid, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceProviderStatus:
    """How an instance is.

    Attributes:
        instance_exists: False: nobody configured it; all work on that name ends.
        status: whether it is up; False: work that is planned on it ends.
        mean_persist_latency: seconds from a request to the completed transaction, the mean of the
            last 256 writes and deletes that succeeded; 0 without any.
    """

    instance_exists: bool
    status: bool = False
    mean_persist_latency: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As JSON names it; a status that is False and a latency of zero are left out."""
        return self._named("mean_persist_latency")

    def to_yaml(self) -> dict[str, Any]:
        """As YAML names it, with the same left out."""
        return self._named("meanPersistLatency")

    def _named(self, latency: str) -> dict[str, Any]:
        said: dict[str, Any] = {"exists": self.instance_exists}
        if self.status:
            said["status"] = True
        if self.mean_persist_latency:
            said[latency] = self.mean_persist_latency
        return said


class PersistenceProvider(Protocol):
    """What every provider offers; its methods may be called concurrently."""

    async def initialize(self, machine_id: MachineId) -> None:
        """Open everything, and see that it can be written. Called once, after the Lease is won.

        An instance that cannot be reached is tried again later, unless it is the last one.

        Raises:
            BackendDead: nothing can be used, or a store belongs to another cluster. All further
                calls raise this too.
        """

    def instances(self) -> Sequence[str]:
        """All that are configured, up or down, always in the same order; asks nobody."""

    async def instance_status(self, instance: str) -> PersistenceProviderStatus:
        """How it is, from memory: within 50 ms, however the store hangs. Never raises."""

    async def put_object(self, instance: str, obj: Mapping[str, Any]) -> ObjectKey:
        """Store it in the place of what was there; it is durable when this returns.

        Repeating it is safe after any error.
        """

    async def delete_object(self, instance: str, kind: GVK, key: ObjectKey) -> None:
        """Remove it for good; silent if it is not there."""

    async def get_object(self, instance: str, kind: GVK, key: ObjectKey) -> dict[str, Any] | None:
        """A copy of its own for the caller; None: it is absent."""

    async def get_all_objects(self, instance: str, kind: GVK) -> list[dict[str, Any]]:
        """Every healthy object of exactly that group, version and kind, in no order."""

    async def close(self) -> None:
        """Wait for the writes under way and let go of everything; may be called twice."""


class VersionedPersistence(Protocol):
    """What a provider may offer beyond it: writes that expect something."""

    def capabilities(self, instance: str) -> frozenset[str]:
        """`CAS`, `FENCING`, `SHARED`: what was tried and holds, not what is promised. A
        conditional deletion is none: services differ in it, so nothing here rests on it."""

    async def put_versioned(
        self, instance: str, obj: Mapping[str, Any], *, expect: Expected
    ) -> tuple[ObjectKey, Version]:
        """Write only if what is there is what is expected.

        Raises:
            VersionConflict: it is not, or the store cannot keep conditions.
        """

    async def get_versioned(
        self, instance: str, kind: GVK, key: ObjectKey
    ) -> tuple[dict[str, Any], Version] | None:
        """The object and its version."""

    def iter_objects(
        self, instance: str, kind: GVK
    ) -> AsyncIterator[tuple[ObjectKey, dict[str, Any], Version]]:
        """Every healthy object of that kind, a page in memory at a time."""


class Stamp(NamedTuple):
    """Which of two copies in different stores is the newer: the higher one."""

    epoch: int
    counter: int


class Stamped(NamedTuple):
    """A copy and its stamp; obj is None where it was deleted and somebody may not know yet."""

    obj: dict[str, Any] | None
    stamp: Stamp


class StampedPersistence(Protocol):
    """What a provider must offer to be one of several: copies that can be compared."""

    async def write_stamped(self, instance: str, kind: GVK, key: ObjectKey, copy: Stamped) -> None:
        """Store a copy as it is, or the mark of a deletion."""

    async def read_stamped(self, instance: str, kind: GVK, key: ObjectKey) -> Stamped | None:
        """The copy, or the mark of a deletion; None: neither."""

    def iter_stamped(self, instance: str, kind: GVK) -> AsyncIterator[tuple[ObjectKey, Stamped]]:
        """All copies and marks of that kind."""


METHODS = tuple(name for name in vars(PersistenceProvider) if not name.startswith("_"))
STAMPED_METHODS = tuple(name for name in vars(StampedPersistence) if not name.startswith("_"))


def require(backend: str, provider: object, methods: Sequence[str] = METHODS) -> None:
    """See at the start, not at the first write, that a backend is whole.

    Raises:
        BackendDead: it lacks methods; the message names it and them.
    """
    missing = [name for name in methods if not callable(getattr(provider, name, None))]
    if missing:
        raise BackendDead(
            f"persistence backend {backend!r} lacks the method "
            f"{', '.join(missing)}; it was made for another interface"
        )
