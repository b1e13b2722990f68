"""The provider interfaces: the capabilities of a cloud, as protocols.

A provider is one async context manager that yields a `Cloud`, and nothing else is required. Each
capability is a field of `Cloud`; None means not offered.

Rules for every method:

* Arguments are read-only.
* Every method must be idempotent: it may be called again while an earlier call still runs, and
  after a call whose response was lost.
* The daemon cancels a call at its deadline and when it loses leadership. A cancelled call has
  one second to clean up, and must leave only resources that the next call can adopt. A call that
  runs longer is abandoned: until it ends, the daemon makes no further call about the same
  Service, route or machine.
* Raise the classes of `ccm.cloud.errors`. Any other exception counts as `Internal`
  and is retried with back-off.
* `operation` declares the deadline of each async method, and whether it changes cloud resources.
  A shutdown of the daemon waits for changes in flight.
* Run blocking libraries through `ccm.cloud.blocking`.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, runtime_checkable

from ccm.cloud.annotations import ServiceAnnotation
from ccm.cloud.errors import NotFound, ProviderError
from ccm.cloud.machines import MachineDriver
from ccm.cloud.operation import LISTING_S, operation
from ccm.cloud.types import (
    CloudFinding,
    InstanceListing,
    InstanceMetadata,
    InstanceState,
    Limits,
    LoadBalancerRecord,
    Power,
    Route,
    Status,
    Zone,
)
from ccm.model import Node, NodeAddress, Service

BALANCER_S = 900.0
"""Deadline in seconds of a load balancer change: clouds take minutes and handle interruptions
badly."""

ROUTE_S = 300.0
"""Deadline in seconds of a route change."""


def _service_uid(service: Service, **_: object) -> str:
    return service.uid


def _name_subject(name: str, **_: object) -> str:
    return name


def _destination_subject(route: Route, **_: object) -> str:
    return route.destination_cidr


class InstancesV2(Protocol):
    """Instances looked up by Node: the interface for a new provider.

    Look up an instance by `node.provider_id`. If the ID is empty, use other properties, usually the
    name. Raise `InvalidArgument` for a provider ID of another scheme; such an ID never means
    absence. Only `instance_exists` reports absence as a result; the other two methods raise
    `NotFound`. If a cloud offers this interface, the daemon calls neither `Instances` nor `Zones`.
    """

    @operation()
    async def instance_exists(self, node: Node) -> bool:
        """Return whether the instance exists; True for a stopped one.

        The node lifecycle controller calls it for each node that is not Ready, once per
        `--node-monitor-period`, and once more before it deletes a node. False deletes the
        Node object, so return False only if the cloud confirms the absence. An error keeps the
        node and is retried with back-off.
        """

    @operation()
    async def instance_shutdown(self, node: Node) -> bool:
        """Return whether the instance is switched off.

        Called right after `instance_exists` returned True. True puts the shutdown taint on the
        node. Any error but `Unimplemented` leaves the node unchanged.

        Raises:
            NotFound: the instance was deleted in the meantime.
            Unimplemented: the cloud does not report the power state; counts as False.
        """

    @operation()
    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        """Return the cloud's metadata of the instance.

        Called once to initialise a node. For each initialised node, called once per
        `--node-status-update-frequency` to update its addresses. During the initialisation, None
        means that the metadata is not available yet: the node keeps the taint `uninitialized` and
        is retried later. An error also keeps the taint, is retried according to its class, and
        causes a Warning event. In an address update, None and errors leave the addresses unchanged.

        Raises:
            NotFound: there is no such instance.
        """


@runtime_checkable
class InstanceStates(Protocol):
    """Optional interface of the `InstancesV2` object: existence and power in one cloud request."""

    @operation()
    async def instance_state(self, node: Node) -> InstanceState:
        """Return the results of `instance_exists` and `instance_shutdown` at once.

        The node lifecycle controller calls this method instead of those two, but confirms an
        absence with `instance_exists` before it deletes the Node. An error keeps the node and is
        retried with back-off, as with `instance_exists`.
        """


class Instances(Protocol):
    """Instances looked up by provider ID or by node name: the old interface.

    For providers ported from an older code base. Only the methods that the node controllers call
    are required. If a property has two methods, the controllers look up by provider ID first, and
    by name after any error. If both lookups fail, the class of the second error counts. An error
    during the initialisation of a node keeps the taint `uninitialized`, causes a Warning event and
    is retried according to its class.
    """

    @operation()
    async def node_addresses(self, node_name: str) -> Sequence[NodeAddress]:
        """Return the addresses of the instance with this node name.

        Called after any error of `node_addresses_by_provider_id`. An empty result leaves the
        addresses of the node unchanged. An error in the periodic address update is logged; the
        next update retries.
        """

    @operation()
    async def node_addresses_by_provider_id(self, provider_id: str) -> Sequence[NodeAddress]:
        """Return the addresses of the instance with this provider ID.

        Called once to initialise a node, and for each initialised node once per
        `--node-status-update-frequency`. After any error the daemon calls `node_addresses`.
        """

    @operation()
    async def instance_id(self, node_name: str) -> str:
        """Return the cloud's instance ID, without scheme, for a node without provider ID.

        Called once to initialise a node without provider ID, and whenever the node lifecycle
        controller checks such a node because it is not Ready.

        Raises:
            NotFound: no such instance, not even a stopped one; the lifecycle controller
                then deletes the Node, after a second check.
            Unimplemented: the initialisation continues without a provider ID.
        """

    @operation()
    async def instance_type(self, node_name: str) -> str:
        """Return the type of the instance with this node name; empty = no label.

        Called after any error of `instance_type_by_provider_id`.
        """

    @operation()
    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        """Return the type of the instance with this provider ID; empty = no label.

        Called once to initialise a node. After any error the daemon calls `instance_type`.
        """

    async def add_ssh_key_to_all_instances(self, user: str, key: str) -> None:
        """Put an SSH key (`<type> <blob>`) on every instance. The daemon never calls it."""

    async def current_node_name(self, hostname: str) -> str:
        """Return the name of the node on which the daemon runs. The daemon never calls it."""

    @operation()
    async def instance_exists_by_provider_id(self, provider_id: str) -> bool:
        """Return whether the instance exists; True for a stopped one.

        Called like `InstancesV2.instance_exists`, and False deletes the Node too. Any error keeps
        the node and is retried with back-off, even `NotFound`: here only False means absence.
        """

    @operation()
    async def instance_shutdown_by_provider_id(self, provider_id: str) -> bool:
        """Return whether the instance is switched off.

        Called right after `instance_exists_by_provider_id` returned True. True puts the
        shutdown taint on the node. Any error but `Unimplemented` leaves the node unchanged.

        Raises:
            NotFound: the instance was deleted in the meantime.
            Unimplemented: the cloud does not report the power state; counts as False.
        """


class Zones(Protocol):
    """Zones for the old `Instances` interface.

    Called once to initialise a node, after its addresses and type are known. An empty field of
    the result sets no label. An error of the lookup by name keeps the taint `uninitialized`, causes
    a Warning event and is retried according to its class.
    """

    async def get_zone(self) -> Zone:
        """Return the zone of the node on which the daemon runs. The daemon never calls it."""

    @operation()
    async def get_zone_by_provider_id(self, provider_id: str) -> Zone:
        """Return the zone of the instance with this provider ID.

        After any error the daemon calls `get_zone_by_node_name`.
        """

    @operation()
    async def get_zone_by_node_name(self, node_name: str) -> Zone:
        """Return the zone of the instance with this node name.

        Called after any error of `get_zone_by_provider_id`.
        """


class Inventory(Protocol):
    """Optional bulk listing, which saves cloud requests in large clusters.

    The daemon shares one listing between initialisation, address updates and lifecycle checks, but
    makes a listing only if it takes fewer cloud requests than single calls. An instance missing
    from a listing is always looked up by a single call before the daemon acts on its absence.
    """

    @operation(deadline_s=LISTING_S)
    async def list_instances(self) -> InstanceListing:
        """Return every instance with power state and metadata, and the number of cloud requests.

        Called at most once per `--inventory-max-age`, but earlier for new nodes that the last
        listing lacks. The next call follows after a third of a second for each request of the last
        one, at least 1 s and at most 30 s. Never called concurrently. On an error the daemon falls
        back to single calls.
        """


class LoadBalancer(Protocol):
    """Load balancers for Services of type LoadBalancer, called by the service controller.

    Calls about one Service never overlap. `cluster_name` is `--cluster-name`. The Service is
    the newest version in the cache. `nodes` are all eligible members: not being deleted, without
    the label `node.kubernetes.io/exclude-from-external-load-balancers` and without the
    taint `ToBeDeletedByClusterAutoscaler`. Nodes that are not Ready are included, because the load
    balancer's health checks exclude them. If `Cloud.load_balancers_check_health` is False, only
    Ready nodes are included.

    If the cloud rejects a node as a member (unknown, or in another network), add all other
    nodes. Then raise an error that names the rejected nodes, usually `Aborted`. An error of
    `ensure_load_balancer` should carry the Status of the load balancer
    (`error.carrying(status)`), so that clients can use the load balancer meanwhile.

    `RetryAfter` requeues the Service after the given delay, without an event in the first minute.
    If it is raised repeatedly, the delay grows up to 5 min. `ImplementedElsewhere` leaves the
    Service to another controller. Any other error causes a Warning event about the Service and is
    retried according to its class:

    * errors with back-off: after 5 s, 10 s, ... 5 min;
    * rejected credentials and exhausted quotas: after half a minute and more;
    * errors that need a correction: after ten minutes, or as soon as the Service changes.

    A cancelled call that does not end blocks all further calls about the same Service, until that
    call ends.
    """

    @operation(subject=_service_uid)
    async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
        """Return the load balancer's status; None if no part of it exists.

        Called after a failed `update_load_balancer`. Unless `Cloud.always_ensure_deleted`, also
        called before the deletion of a load balancer that this process ensured or found up to date.

        Before a deletion, None means that nothing is left to delete, so return None only if the
        cloud confirms the absence. Never raise `NotFound` instead: an error keeps the Service and
        is retried. After a failed update, None means that there was nothing to update, so the
        update counts as successful; an error counts as "the load balancer exists".
        """

    def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:
        """Return the name of the load balancer in the cloud; no I/O.

        Called to find a Service's load balancer in a listing of `LoadBalancerDigests`. The name
        must be unique for each Service, even if a Service is deleted and recreated under its old
        name; `default_load_balancer_name` returns such a name. If this method raises an error, the
        daemon calls `ensure_load_balancer`.
        """

    @operation(deadline_s=BALANCER_S, change=True, subject=_service_uid)
    async def ensure_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> Status:
        """Create or update the load balancer: listeners, health checks and members.

        Called when a Service appears or changes, after a failed update of the members, and
        once per Service after a start (see `LoadBalancerDigests`). The call must be idempotent:
        without a change of the Service or nodes, it changes nothing. `nodes` may be empty. The
        daemon writes the result to the Service's status. Before the first call, the daemon adds the
        finalizer `service.kubernetes.io/load-balancer-cleanup` to the Service, so that the load
        balancer is always removed with the Service.

        Raises:
            Aborted: the cloud rejected some nodes as members; everything else is done. Any error
                but RetryAfter may carry the Status of a working load balancer (`carrying`):
                the daemon writes that Status to the Service, and retries the call.
            RetryAfter: the cloud operation is in progress; the call is repeated after the delay.
            InvalidArgument, FailedPrecondition: the cloud cannot fulfil the Service's spec.
            ImplementedElsewhere: another controller is responsible; the finalizer stays, and the
                status is not changed.
        """

    @operation(deadline_s=BALANCER_S, change=True, subject=_service_uid)
    async def update_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> None:
        """Make exactly these nodes the members of the load balancer; change nothing else.

        Called once per Service for each burst of node changes, also while
        `ensure_load_balancer` fails for the Service. So read only the Service fields that members
        need: an invalid annotation or port must not keep deleted nodes as members. An error is
        retried according to its class. From the third consecutive error on, the daemon retries with
        `ensure_load_balancer`. The Warning event about an error names the nodes in `nodes`.

        Raises:
            Aborted: the cloud rejected some nodes as members; the others are up to date.
            NotFound: there is no load balancer; the daemon checks this with `get_load_balancer`.
            RetryAfter: the cloud operation is in progress; the call is repeated after the delay.
        """

    @operation(deadline_s=BALANCER_S, change=True, subject=_service_uid)
    async def ensure_load_balancer_deleted(self, cluster_name: str, service: Service) -> None:
        """Delete the load balancer with all its parts, even an incomplete one; succeed if absent.

        Never delete a resource that was not created for the Service. If `ensure_load_balancer`
        uses an existing load balancer without labels or tags of an owner, it must label the load
        balancer as adopted. Do not delete such a load balancer here: remove only the Service's
        listeners and labels. `LoadBalancerRecord.adopted` reports the adoption to `kube-ccm plan`.

        Called when a Service is deleted or no longer needs a load balancer. Return only when
        nothing is left: the daemon then removes the finalizer and makes no further call. Any error
        keeps the Service and its finalizer and is retried according to its class;
        only `ImplementedElsewhere` counts as success.

        Raises:
            RetryAfter: the cloud operation is in progress; the call is repeated after the delay.
            FailedPrecondition: the deletion is blocked, for example by deletion protection.
        """


@runtime_checkable
class LoadBalancerDigests(Protocol):
    """Optional interface of the `LoadBalancer` object: digests, which save calls after a start.

    After a start every Service must be reconciled once. With this interface the daemon makes one
    listing and computes the wanted digest of each Service. It calls `ensure_load_balancer` only for
    Services whose listed digest differs or whose load balancer is missing.

    A digest is a text such as a hash over listeners, health checks, source ranges, members and all
    other properties that the provider sets. The wanted and the actual digest must be equal exactly
    if `ensure_load_balancer` would change nothing. Write one function that computes a digest, and
    apply it to the wanted and to the actual properties. Never store the wanted digest in the cloud
    (a tag, a description) as the actual digest: that would hide changes made outside the daemon.
    """

    @operation(deadline_s=LISTING_S)
    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        """Return all load balancers of this cluster in their actual state.

        Called once after a start and once per `--load-balancer-drift-check-period`. On an error
        after a start, the daemon retries a few times, then calls `ensure_load_balancer` for every
        Service. On an error later, it waits for the next check.
        """

    def load_balancer_digest(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> str:
        """Return the wanted digest for a Service and its nodes; no I/O.

        Raise any `CloudError` if the Service cannot be served: the daemon then calls
        `ensure_load_balancer`, which reports the error.
        """


@runtime_checkable
class LoadBalancerRemoval(Protocol):
    """Optional interface of the `LoadBalancer` object: removal of orphaned load balancers.

    Only `kube-ccm orphans --delete=NAME` calls it; the daemon never does.
    """

    @operation(deadline_s=BALANCER_S, change=True, subject=_name_subject)
    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """Delete a load balancer listed by `list_load_balancers`, with all its parts.

        Succeed if it is gone. Never change a load balancer of another cluster.

        Raises:
            RetryAfter: the cloud operation is in progress.
            FailedPrecondition: the deletion is blocked, for example by deletion protection, or the
                load balancer lacks the marker of this cluster.
        """


@runtime_checkable
class LoadBalancerTransfer(Protocol):
    """Optional interface of the `LoadBalancer` object: transfer of load balancers.

    Only `kube-ccm journal adopt` causes a call, for example after a Service was recreated. The load
    balancer has the UID of the old Service, so the new Service would get another load balancer.
    """

    @operation(deadline_s=BALANCER_S, change=True, subject=_service_uid)
    async def transfer_load_balancer(
        self, cluster_name: str, former: Service, service: Service
    ) -> None:
        """Transfer the load balancer of `former` to `service`; keep its addresses.

        Afterwards `get_load_balancer` finds the load balancer for `service` only; the next
        `ensure_load_balancer` corrects its configuration. Succeed if an earlier call has
        transferred the load balancer.

        Args:
            cluster_name: `--cluster-name`.
            former: Service that does not exist any more: namespace, name, UID and the recorded
                annotations.
            service: Service that gets the load balancer.

        Raises:
            NotFound: neither Service has a load balancer.
            FailedPrecondition: `service` has another load balancer.
        """


class Routes(Protocol):
    """Routes to the Pods of each node, for clusters without an overlay network.

    The route controller compares the listed routes with the Pod ranges of the nodes on every node
    change, and periodically. At most `Limits.concurrent_routes` changes run concurrently, never two
    about overlapping ranges.

    An error of a creation or deletion delays only the next call for the same route. After
    `RetryAfter`, the delay is the given one, and there is no event in the first minute; if the
    error is raised repeatedly, the delay grows up to 5 min. After other errors, the delay depends
    on the error class: 1 s, 2 s, ... 5 min for errors with back-off. After the delay, a comparison
    with a new listing decides whether the call is repeated.
    """

    @operation(deadline_s=LISTING_S)
    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        """Return all routes that the cloud manages for this cluster, including blackholes.

        Called for each comparison. Never return a partial listing: missing routes are created, and
        a node that lacks the route of at least one of its ranges gets the condition
        NetworkUnavailable. After an error the controller changes neither routes nor conditions, and
        retries the listing after at most one minute. The controller never changes routes outside
        `--cluster-cidr`.
        """

    @operation(deadline_s=ROUTE_S, change=True, subject=_destination_subject)
    async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:
        """Create a route; `name_hint` may become part of its name.

        Called for a Pod range that no listed route covers, if its node has addresses. The route
        may exist nevertheless, because a response was lost or the listing was stale. If that
        route leads to the same node, return successfully and create no second one. The outcome sets
        the node's NetworkUnavailable condition.

        Raises:
            AlreadyExists: the range has a route to another target, and the cloud allows only one
                route per range. Never change the existing route.
            FailedPrecondition: none of the node's addresses is routable yet.
            ResourceExhausted: the route table is full.
        """

    @operation(deadline_s=ROUTE_S, change=True, subject=_destination_subject)
    async def delete_route(self, cluster_name: str, route: Route) -> None:
        """Delete a route as returned by `list_routes`; succeed if it is gone.

        Called for a route whose node is gone or has other Pod ranges, for a duplicate and for a
        blackhole. The controller checks the cached node again right before the call, and creates a
        new route for the range only after the call.
        """


class Clusters(Protocol):
    """Cluster names and API server addresses. The daemon never calls these methods."""

    async def list_clusters(self) -> Sequence[str]:
        """Return the names of the clusters in this cloud."""

    async def master(self, cluster_name: str) -> str:
        """Return the address of a cluster's API server."""


class PVLabeler(Protocol):
    """Labels for volumes. Deprecated in Kubernetes; the daemon never calls it."""

    async def get_labels_for_volume(self, volume: Any) -> Mapping[str, str]:
        """Return the labels of a PersistentVolume."""


class InformerFactory(Protocol):
    """Access to the daemon's shared informers."""

    def on_node(self, handler: Callable[[Node | None, Node | None], None]) -> None:
        """Call `handler(old, new)` for every change of a Node.

        `old` is None for a new Node, `new` for a deleted one. Existing nodes are delivered first.
        Handlers run in the event loop and must not block.
        """

    def node(self, name: str) -> Node | None:
        """Return the Node from the cache; None = not in the cache."""


SetInformers = Callable[[InformerFactory], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """One cloud: its name and its capabilities; None = not offered.

    Attributes:
        name: the provider's name; also the provider ID scheme if `schemes` is empty.
        instances: instances by Node. Takes precedence over `instances_v1` and `zones`.
        instances_v1: instances by provider ID and name.
        zones: zones, used with `instances_v1` only.
        clusters: never called by the daemon.
        load_balancer: load balancers.
        routes: Pod routes.
        pv_labeler: never called by the daemon.
        set_informers: called once, before the caches start.
        inventory: bulk listing.
        machines: machine driver, for a machine controller; the node controllers never call it.
        kubermatic: machine driver for Kubermatic's machines, because their provider specs have
            another form; a `KubermaticDriver`, or the result of `from_kubermatic`.
        has_cluster_id: True if the cloud's objects have a label or tag of this cluster, or if the
            credentials give access to objects of this cluster only. Otherwise the daemon refuses to
            start without `--allow-untagged-cloud`.
        schemes: provider ID schemes of this cloud, including old spellings. Empty = `name`.
            A node with another scheme is never changed.
        foreign_ids: prefixes of provider IDs that have a scheme of this cloud but belong to the
            controller of another product, for example of the same vendor.
        account: account of the cloud in which the load balancers are, and the VMs unless the driver
            has `MachineAccounts`; for example project ID and region. The journal records the
            account with each resource. While the credentials are those of another account, the
            daemon does not look the resource up: its absence would prove nothing. The account must
            not change with a rotation of credentials, so never derive it from a token. Empty = the
            provider cannot tell; then the journal assumes one account.
        limits: deadlines and rate limit of calls to this provider.
        service_annotations: prefixes of the Service annotations that the load balancers read; a
            change of any other annotation causes no call. None = every annotation counts.
        service_annotation_schema: declarations of the Service annotations. If the admission
            webhook is enabled, it rejects a Service with an invalid value, and warns about an
            undeclared annotation whose prefix is in `service_annotations`. Empty = no validation.
        always_ensure_deleted: True = a deletion calls `ensure_load_balancer_deleted` at once,
            which saves a call and also removes parts that `get_load_balancer` does not report.
            False = `get_load_balancer` is called first, provided that this process has ensured
            the load balancer or found it up to date, and no change is pending. The Go
            cloud-controller-manager always calls `get_load_balancer` first.
        load_balancers_check_health: False = the load balancers send traffic to every member,
            healthy or not. The daemon then makes only Ready nodes members.
        examine: yields the results of checks for `kube-ccm doctor`, such as of quotas and of the
            resources that the settings name. It only reads, and may raise `CloudError`.
    """

    name: str
    instances: InstancesV2 | None = None
    instances_v1: Instances | None = None
    zones: Zones | None = None
    clusters: Clusters | None = None
    load_balancer: LoadBalancer | None = None
    routes: Routes | None = None
    pv_labeler: PVLabeler | None = None
    set_informers: SetInformers | None = None
    inventory: Inventory | None = None
    machines: MachineDriver | None = None
    kubermatic: MachineDriver | None = None
    has_cluster_id: bool = False
    schemes: Sequence[str] = ()
    foreign_ids: Sequence[str] = ()
    account: str = ""
    limits: Limits = field(default_factory=Limits)
    service_annotations: Sequence[str] | None = None
    service_annotation_schema: Sequence[ServiceAnnotation[Any]] = ()
    always_ensure_deleted: bool = False
    load_balancers_check_health: bool = True
    examine: Callable[[], AsyncIterator[CloudFinding]] | None = None

    def __new__(cls, *_: object, **fields: object) -> Self:
        """Create a cloud. Raises ProviderError for an unknown field."""
        check_fields(fields, where="Cloud()")
        return object.__new__(cls)

    @property
    def provider_schemes(self) -> Sequence[str]:
        """Provider ID schemes of this cloud: `schemes`, or else `name`."""
        return self.schemes or (self.name,)

    @property
    def machine_providers(self) -> Collection[str]:
        """Values of `MachineClass.provider` that the driver accepts, case-insensitive."""
        # A driver need not derive from `Driver`, so it may lack the attribute.
        declared: Collection[str] = getattr(self.machines, "provider_names", ())
        return declared or (self.name,)

    def with_kubermatic(self) -> Cloud:
        """Return a copy of the cloud whose `machines` is the driver in `kubermatic`."""
        return replace(self, machines=self.kubermatic)


def check_fields(names: Collection[str], *, where: str) -> None:
    """Raise ProviderError for a name that is not a field of `Cloud`; `where` begins the message."""
    known = Cloud.__dataclass_fields__
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ProviderError(f"{where}: {name!r} is not a field of Cloud; {advice}")


class InstancesByPower(ABC):
    """Base class that implements `InstanceStates` and most of `InstancesV2`.

    A subclass provides `instance_power` and `instance_metadata`.
    """

    @abstractmethod
    async def instance_power(self, node: Node) -> Power:
        """Return the power state; RUNNING for a state that the provider does not know.

        Raises:
            NotFound: the cloud confirms that there is no such instance; the daemon then deletes
                the Node.
        """

    async def instance_exists(self, node: Node) -> bool:
        """See `InstancesV2.instance_exists`."""
        return (await self.instance_state(node)).exists

    async def instance_shutdown(self, node: Node) -> bool:
        """See `InstancesV2.instance_shutdown`."""
        return await self.instance_power(node) is Power.SHUTDOWN

    async def instance_state(self, node: Node) -> InstanceState:
        """See `InstanceStates.instance_state`."""
        try:
            return InstanceState(exists=True, power=await self.instance_power(node))
        except NotFound:
            return InstanceState(exists=False)
