"""Manifest of a controller: names, flags, permissions and construction.

`--help` and a standby replica read the manifests before any controller runs, so a manifest imports
little. Only `build` imports the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ccm.base.flags import FeatureGate, FlagSection, FlagViolation

if TYPE_CHECKING:
    from ccm.cloud.calls.client import CloudClient
    from ccm.cloud.interface import Cloud
    from ccm.cloud.lookup import SharedInventory
    from ccm.kube.client import Client
    from ccm.kube.informer import SharedInformers
    from ccm.runtime.controller import Runnable
    from ccm.runtime.deletions import DeletionRecord
    from ccm.runtime.writer import Recorder

GENERIC = FlagSection("generic")
MISC = FlagSection("misc")
"""Flag sections with flags of the daemon and of controllers, as in the Go
cloud-controller-manager."""

_DELETIONS = FlagSection("deletions", ours=True)

F = TypeVar("F")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MassDeletionFlags:
    """Flag of all controllers that delete nodes, load balancers or routes."""

    allow_mass_deletion: bool = _DELETIONS.flag(
        False,
        "Allow mass deletions of nodes, load balancers and routes. By default they are blocked "
        "when the cloud reports the instances of more than a third of the nodes missing, or when "
        "more than a third of the Services or nodes disappear without a deletion event.",
    )


def _selector(value: str) -> str:
    from ccm.model.selectors import BadSelectorError, parse_labels

    try:
        parse_labels(value)
    except BadSelectorError:
        return "must be a label selector such as cloud=ours,!foreign"
    return ""


@dataclass(frozen=True, kw_only=True)
class NodeSelectorFlags:
    """Flag of all controllers that handle nodes."""

    node_selector: str = FlagSection("nodes", ours=True).flag(
        "",
        "Label selector of the nodes that this daemon manages. Other nodes are ignored, like "
        "nodes whose provider ID belongs to another cloud. Empty selects all nodes.",
        check=lambda value: _selector(value) if value else "",
        former_name="own-nodes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """Access to a cluster.

    Attributes:
        client: returns an API client; the argument is its user-agent suffix.
        recorder: returns the event recorder of the named component.
        informers: shared informers of the cluster.
    """

    client: Callable[[str], Client]
    recorder: Callable[[str], Recorder]
    informers: SharedInformers


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """Dependencies of controllers.

    Attributes:
        client: returns the API client of the named service account.
        recorder: returns the event recorder of the named component.
        informers: shared informers of the daemon's cluster.
        cloud_client: the cloud client.
        inventory: the shared listing of instances; None if the provider cannot list instances.
        gates: name of each feature gate -> whether the gate is on.
        deletions: the deletion record.
        clusters: other clusters, by their role for a controller.
        shared: objects that `shared_instance` created, by type.
    """

    client: Callable[[str], Client]
    recorder: Callable[[str], Recorder]
    informers: SharedInformers
    cloud_client: CloudClient
    inventory: SharedInventory | None
    gates: Mapping[str, bool]
    deletions: DeletionRecord
    clusters: Mapping[str, ClusterContext] = field(default_factory=dict)
    shared: dict[type, Any] = field(default_factory=dict)

    def shared_instance(self, kind: type[T], make: Callable[[], T]) -> T:
        """Return the shared object of type `kind`; create it with `make` at the first call."""
        if kind not in self.shared:
            self.shared[kind] = make()
        return cast("T", self.shared[kind])

    def cluster(self, role: str) -> ClusterContext:
        """Return the cluster with this role; if there is none, the daemon's own cluster."""
        own = ClusterContext(client=self.client, recorder=self.recorder, informers=self.informers)
        return self.clusters.get(role, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLease:
    """Lease that the daemon shares with another program that has the same task.

    A controller with such a Lease runs only while the daemon holds both this Lease and its own
    Lease.

    Attributes:
        namespace: namespace of the Lease.
        name: name of the Lease.
        advice: what to do while another program holds the Lease.
    """

    namespace: str
    name: str
    advice: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Generic[F]):
    """Manifest of one controller: names, permissions, flags, and its construction.

    `name`, `alias`, `client` and `metric` are an interface: they are never changed or removed. `F`
    is the class of the controller's flags. Functions that return a message return an empty string
    if there is nothing to report.

    Attributes:
        name: canonical name, for flags, logs and health checks.
        alias: short name that `--controllers` accepts too.
        client: user-agent suffix, and name of the service account; two controllers may share one.
        metric: label value of `running_managed_controllers`.
        former_name: earlier name that is still accepted; empty = none.
        watched: resources that the controller lists and watches through the shared informers.
        permissions: other (verb, resource) permissions, used by the controller's service account if
            it has one.
        named_permissions: (verb, resource, name) permissions for single cluster-scoped objects.
        namespaced_permissions: returns (verb, resource, namespace) permissions for single
            namespaces; the shared informers use `list` and `watch`.
        optional_permissions: (verb, resource, namespace) permissions that only some objects need.
        groups: API groups of resources outside the core group, by plural.
        roles: returns the clusters in which the controller needs its permissions for a resource
            and a namespace, as roles (see `ControllerContext.cluster`). The default, an empty role,
            is the daemon's own cluster.
        off_by_default: whether `--controllers=*` leaves the controller off; only its name in the
            list turns the controller on.
        lease: returns the Lease that keeps out another program with the same task; None = the
            daemon's own Lease suffices.
        gates: feature gates that only this controller reads.
        faults: returns the contradictions between flags.
        disabled_by: returns a message that names the flag which turns the controller off.
        missing_interface: returns a message about an interface that the provider lacks.
        config_fault: returns a message about a flag that keeps the controller from starting; other
            controllers still run.
        build: creates the controller; called only if no function above returned a message.
        controller_module: module of the controller, to be imported early; empty = `controller` in
            the package of `build`.
        metrics_module: module of the controller's metrics; empty = `metrics` in the package of
            `build`.
    """

    name: str
    alias: str
    client: str
    metric: str
    former_name: str = ""
    watched: tuple[str, ...] = ("nodes",)
    permissions: tuple[tuple[str, str], ...]
    named_permissions: tuple[tuple[str, str, str], ...] = ()
    namespaced_permissions: Callable[[F], Iterable[tuple[str, str, str]]] = lambda _flags: ()
    optional_permissions: tuple[tuple[str, str, str], ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)
    roles: Callable[[F, str, str], Collection[str]] = lambda _flags, _resource, _namespace: ("",)
    off_by_default: bool = False
    lease: Callable[[F], SharedLease | None] = lambda _flags: None
    gates: tuple[FeatureGate, ...] = ()
    faults: Callable[[F], Iterable[FlagViolation]] = lambda _flags: ()
    disabled_by: Callable[[F], str] = lambda _flags: ""
    missing_interface: Callable[[Cloud], str]
    config_fault: Callable[[F], str] = lambda _flags: ""
    build: Callable[[ControllerContext, F], Runnable]
    controller_module: str = ""
    metrics_module: str = ""

    def skip_reason(self, flags: F, cloud: Cloud) -> str:
        """Return why flags or provider turn the controller off; empty if they do not."""
        return self.disabled_by(flags) or self.missing_interface(cloud)

    @property
    def modules(self) -> tuple[str, str]:
        """Names of the controller's module and its metrics module."""
        folder = self.build.__module__.rpartition(".")[0]
        return (
            self.controller_module or f"{folder}.controller",
            self.metrics_module or f"{folder}.metrics",
        )


def missing_instances(cloud: Cloud) -> str:
    """Return a message if the provider has no instances (for `Manifest.missing_interface`)."""
    has_instances = cloud.instances is not None or cloud.instances_v1 is not None
    return "" if has_instances else "the provider does not implement instances"
