"""The provider interfaces: what a cloud may offer, as protocols.

A provider is one async context manager that yields a `Cloud`. Each capability the cloud
has is a field of it; None means not offered, and nothing else has to be written.

Rules that hold for every method:

* Objects handed in are read-only.
* A method may be called again before an earlier call returned, and again after a call
  whose answer was lost: repeating it must be harmless.
* The daemon gives every call a deadline and cancels it on lost leadership; cancelled
  calls must leave nothing that the next call cannot adopt. They have a second to clean up;
  one that goes on is abandoned, and nothing else is done about its Service or route until it
  ends.
* Raise the classes of `ccm.cloud.errors`; whatever else is raised counts as `Internal`
  and is tried again with back-off.
* Each method that the daemon waits for says how long by `operation`, which also says whether
  it changes something; a stop of the daemon lets changes come to their end.
* Blocking libraries run through `ccm.cloud.blocking`.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

from ccm.cloud.annotations import ServiceAnnotation
from ccm.cloud.errors import NotFound, ProviderError
from ccm.cloud.machines import MachineDriver
from ccm.cloud.operation import LISTING_S, operation
from ccm.cloud.types import (
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
"""Deadline of a change of a load balancer: clouds take minutes, and do not like it cut."""

ROUTE_S = 300.0
"""Deadline of a change of a route."""


def _service_uid(service: Service, **_: object) -> str:
    return service.uid


def _name(name: str, **_: object) -> str:
    return name


def _destination(route: Route, **_: object) -> str:
    return route.destination_cidr


class InstancesV2(Protocol):
    """Instances looked up by Node: the interface for a new provider.

    Look up by `node.provider_id`; only where it is empty, by other properties, usually the
    name. A provider ID of another scheme is `InvalidArgument`, never an absence. That an instance
    is absent is an answer of `instance_exists` alone: the other two raise `NotFound` then. If a
    cloud offers this, the daemon calls neither `Instances` nor `Zones`.
    """

    @operation()
    async def instance_exists(self, node: Node) -> bool:
        """Whether the instance exists; True for a stopped one.

        Called by the node lifecycle controller for each node that is not Ready, once per
        `--node-monitor-period`, and once more before a node is deleted. False deletes the
        Node object, so answer False only on positive knowledge. An error keeps the node
        and is asked again with back-off.
        """

    @operation()
    async def instance_shutdown(self, node: Node) -> bool:
        """Whether the instance is switched off.

        Called right after `instance_exists` said True. True puts the shutdown taint on the
        node. Any error leaves the node as it is.

        Raises:
            NotFound: the instance is gone since; neither running nor switched off.
            Unimplemented: the cloud cannot tell.
        """

    @operation()
    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        """Everything the cloud knows about the instance.

        Called once to initialise a node, and for each initialised node once per
        `--node-status-update-frequency` to keep its addresses in step. None means there is
        nothing to say yet: the node stays tainted and is asked about again later. An error
        keeps the taint and is retried according to its class; a Warning event tells the cause.

        Raises:
            NotFound: there is no such instance.
        """


@runtime_checkable
class InstanceStates(Protocol):
    """Optional on the same object as `InstancesV2`: existence and power in one cloud request."""

    @operation()
    async def instance_state(self, node: Node) -> InstanceState:
        """What `instance_exists` and `instance_shutdown` would say, asked at once.

        Called by the node lifecycle controller in their place. Errors as for
        `instance_exists`.
        """


class Instances(Protocol):
    """Instances looked up by provider ID or by node name: the old interface.

    For providers ported from an older code base. Only what the node controllers call is
    needed. Where there are two ways to ask, they ask by provider ID first, and by name after
    any error; the error of the second counts. Whatever is raised while a node is initialised
    keeps its taint, makes a Warning event and is tried again according to its class.
    """

    @operation()
    async def node_addresses(self, node_name: str) -> Sequence[NodeAddress]:
        """Addresses by node name.

        Called after `node_addresses_by_provider_id` raised anything. An empty answer leaves
        the addresses of the node as they are. An error in the periodic pass is logged and
        asked again in the next one.
        """

    @operation()
    async def node_addresses_by_provider_id(self, provider_id: str) -> Sequence[NodeAddress]:
        """Addresses by provider ID.

        Called once to initialise a node, and for each initialised node once per
        `--node-status-update-frequency`. Any error leads to `node_addresses`.
        """

    @operation()
    async def instance_id(self, node_name: str) -> str:
        """The cloud's ID of an instance, without scheme, for nodes without provider ID.

        Called once to initialise such a node, and by the lifecycle controller in each look
        at one that is not Ready.

        Raises:
            NotFound: no such instance, not even a stopped one; the lifecycle controller
                then deletes the Node, after asking a second time.
            Unimplemented: initialisation goes on without a provider ID.
        """

    @operation()
    async def instance_type(self, node_name: str) -> str:
        """Instance type by node name.

        Called after `instance_type_by_provider_id` raised anything. Empty = no label.
        """

    @operation()
    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        """Instance type by provider ID.

        Called once to initialise a node. Empty = no label. Any error leads to
        `instance_type`.
        """

    async def add_ssh_key_to_all_instances(self, user: str, key: str) -> None:
        """Put an SSH key (`<type> <blob>`) on every instance. The daemon never calls it."""

    async def current_node_name(self, hostname: str) -> str:
        """The node name of the machine we run on. The daemon never calls it."""

    @operation()
    async def instance_exists_by_provider_id(self, provider_id: str) -> bool:
        """Whether the instance exists; True for a stopped one.

        Called as `InstancesV2.instance_exists` is, and False deletes the Node as there. An
        error keeps the node and is asked again with back-off; `NotFound` is such an error
        too, never an answer.
        """

    @operation()
    async def instance_shutdown_by_provider_id(self, provider_id: str) -> bool:
        """Whether the instance is switched off.

        Called right after `instance_exists_by_provider_id` said True. True puts the
        shutdown taint on the node. Any error but `Unimplemented` leaves the node as it is.

        Raises:
            NotFound: the instance is gone since; neither running nor switched off.
            Unimplemented: the cloud cannot tell, which reads as no.
        """


class Zones(Protocol):
    """Zones for the old `Instances` interface.

    Called once to initialise a node, after its addresses and type are known. Either field
    of the answer may be empty: no label then. An error of the second way keeps the node's
    taint, makes a Warning event and is tried again according to its class.
    """

    async def get_zone(self) -> Zone:
        """The zone of the machine we run on. The daemon never calls it."""

    @operation()
    async def get_zone_by_provider_id(self, provider_id: str) -> Zone:
        """The zone of an instance. Any error leads to `get_zone_by_node_name`."""

    @operation()
    async def get_zone_by_node_name(self, node_name: str) -> Zone:
        """The same by node name, after the other way failed."""


class Inventory(Protocol):
    """Optional bulk listing, which makes large clusters cheap.

    The daemon shares one listing between initialisation, the address pass and the
    lifecycle pass, and uses it only where it costs fewer cloud requests than asking one by
    one. An instance missing from a listing is always asked for on its own before anything
    follows from that.
    """

    @operation(deadline_s=LISTING_S)
    async def list_instances(self) -> InstanceListing:
        """Every instance, with power state and complete metadata, and the requests it took.

        Called at most once per `--inventory-max-age`, never twice at once. On an error the
        daemon falls back to single calls.
        """


class LoadBalancer(Protocol):
    """Load balancers for Services of type LoadBalancer, called by the service controller.

    Calls about one Service never overlap. `cluster_name` is `--cluster-name`. The Service is
    the newest one known. The nodes are all that may be members: not being deleted, without
    the label `node.kubernetes.io/exclude-from-external-load-balancers` and without the
    taint `ToBeDeletedByClusterAutoscaler`; whether they are Ready is left to the load
    balancer's own health checks, unless `Cloud.load_balancers_check_health` is False.

    A node that the cloud refuses as a member (unknown to it, in another network) is no reason to
    leave out the others: make the rest members, then raise an error that names the refused nodes,
    usually `Aborted`. From `ensure_load_balancer` that error carries the Status of the load
    balancer (`error.carrying(status)`), so that the Service is served meanwhile.

    `RetryAfter` from any of the calls means "come back then" and makes no event in its first
    minute; the longer it lasts, the later the next call comes, up to 5 min.
    `ImplementedElsewhere` leaves the Service to another controller. Any other error makes a
    Warning event about the Service and is tried again according to its class: what back-off
    suits after 5 s, 10 s, ... 5 min, refused credentials and quotas after half a minute and
    more, what somebody has to correct after ten minutes or as soon as the Service changes.
    A call that does not end when it is cancelled keeps its Service from every further call
    until it does.
    """

    @operation(subject=_service_uid)
    async def get_load_balancer(self, cluster_name: str, service: Service) -> Status | None:
        """The load balancer's status; None when nothing of it is there.

        Called before the deletion of one that this process ensured or found as it should be
        (unless `Cloud.always_ensure_deleted`), and after a failed `update_load_balancer`. None
        ends the deletion without a further call, so answer None only on positive knowledge, and
        never raise `NotFound` instead: an error keeps the Service and is tried again. After a
        failed update None means that there was nothing to update, which is no failure; an error
        here counts as "it is there".
        """

    def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:
        """The name of the load balancer in the cloud; pure, no call.

        Called to find a Service in a listing of `LoadBalancerDigests`. Two Services never
        share a name, not even two of the same name one after the other.
        `default_load_balancer_name` will do. An error makes the Service count as different:
        it is ensured.
        """

    @operation(deadline_s=BALANCER_S, change=True, subject=_service_uid)
    async def ensure_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> Status:
        """Create it or bring it in step: listeners, health checks and members.

        Called when a Service appears or changes, after a failed update of the members, and
        once per Service after a start (see `LoadBalancerDigests`). May be repeated at any
        time; repeating it without a change changes nothing. `nodes` may be empty. The answer
        is written to the Service's status. Before the first call the Service has our
        finalizer, so that whatever is made here will be removed.

        Raises:
            Aborted: the cloud refused some nodes as members; all else is done. Like any other
                error but RetryAfter it may carry the Status of a load balancer that serves
                (`carrying`): that Status is written to the Service, and the call is repeated.
            RetryAfter: the cloud still works on it; called again then.
            InvalidArgument, FailedPrecondition: the Service asks for what cannot be had.
            ImplementedElsewhere: not ours; the finalizer stays, the status is left alone.
        """

    @operation(deadline_s=BALANCER_S, change=True, subject=_service_uid)
    async def update_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> None:
        """Make exactly these nodes the members, change nothing else.

        Called once per Service for each burst of changes of the node set, also while
        `ensure_load_balancer` fails for this Service: read as little of it as members need, so
        that a wrong annotation or port does not keep gone nodes as members. An error is tried
        again according to its class, from the third one in a row by `ensure_load_balancer`;
        the Warning event names the nodes.

        Raises:
            Aborted: the cloud refused some nodes as members; the others are as they should be.
            NotFound: there is no load balancer; `get_load_balancer` is asked whether that is
                so.
            RetryAfter: the cloud still works on it; called again then.
        """

    @operation(deadline_s=BALANCER_S, change=True, subject=_service_uid)
    async def ensure_load_balancer_deleted(self, cluster_name: str, service: Service) -> None:
        """Remove it and every left-over of a half-made one; silent when nothing is there.

        What was not made for the Service is never deleted. Where `ensure_load_balancer` takes a
        load balancer that bears nobody's mark, mark it as adopted, and release it here: without
        the Service's listeners and marks. `LoadBalancerRecord.adopted` says so to `kube-ccm plan`.

        Called when a Service is deleted or no longer wants a load balancer. Returning means
        that nothing is left: the Service may vanish, and nobody will ask again. Whatever is
        raised keeps the Service, finalizer and all, and is tried again according to its
        class; only `ImplementedElsewhere` counts as returning.

        Raises:
            RetryAfter: the cloud still works on it; called again then.
            FailedPrecondition: something forbids it, such as protection from deletion.
        """


@runtime_checkable
class LoadBalancerDigests(Protocol):
    """Optional on the same object as `LoadBalancer`: a start without needless work.

    After a start every Service has to be looked at once. With this capability the daemon
    makes one listing, computes the digest each Service should have, and calls
    `ensure_load_balancer` only where the two differ or the load balancer is missing.

    A digest is any text that is equal exactly when `ensure_load_balancer` would change
    nothing: a hash over listeners, health checks, source ranges, members and whatever else
    the provider sets. Write one function from "what a load balancer is made of" to a
    digest, and feed it once with what is wanted and once with what the cloud holds. Never
    compute the second from a note (a tag, a description) that says what was wanted: it
    would hide every change made behind the daemon's back.
    """

    @operation(deadline_s=LISTING_S)
    async def list_load_balancers(self, cluster_name: str) -> Sequence[LoadBalancerRecord]:
        """All load balancers of this cluster as the cloud holds them now.

        Called once after a start and once per `--load-balancer-drift-check-period`. On an
        error the daemon tries again a few times, then ensures every Service.
        """

    def load_balancer_digest(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> str:
        """The digest that Service and nodes ask for; pure, no call.

        Raise any `CloudError` where the Service cannot be served: it is then ensured, and
        the error is reported from there.
        """


@runtime_checkable
class LoadBalancerRemoval(Protocol):
    """Optional on the same object as `LoadBalancer`: removal of what belongs to no Service.

    The daemon never calls it; `kube-ccm orphans --delete=NAME` does.
    """

    @operation(deadline_s=BALANCER_S, change=True, subject=_name)
    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """Remove a load balancer of this cluster that `list_load_balancers` named, and all it has.

        Silent when it is gone; that of another cluster is left alone.

        Raises:
            RetryAfter: the cloud still works on it.
            FailedPrecondition: something forbids it, such as protection from deletion.
        """


class Routes(Protocol):
    """Routes to the pods of each node, for clusters without an overlay network.

    Called by the route controller, at most `Limits.concurrent_routes` calls that change
    something at once, never two about overlapping ranges. It compares what is listed with
    the Pod ranges of the nodes whenever nodes change, and now and then anyway.

    `RetryAfter` means "come back then" and makes no event in its first minute; the longer it
    lasts, the later the next call comes, up to 5 min. Any other error pauses the one route
    according to its class, 1 s, 2 s, ... 5 min where back-off suits; the comparison after the
    pause decides by a new listing whether the call is made again.
    """

    @operation(deadline_s=LISTING_S)
    async def list_routes(self, cluster_name: str) -> Sequence[Route]:
        """All routes that the cloud manages for this cluster, those that lead nowhere included.

        Called for each comparison. Never a part of them: what is missing is created, and a
        node none of whose ranges has a route is marked as without network. On an error
        nothing is created, deleted or marked, and the listing is tried again after at most
        a minute. Routes outside of `--cluster-cidr` are left alone.
        """

    @operation(deadline_s=ROUTE_S, change=True, subject=_destination)
    async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:
        """Create a route; `name_hint` may shape its name.

        Called for a Pod range of a node that has addresses, where no listed route covers the
        range. The route may be there all the same: an answer was lost, or the listing lags
        behind. One that leads to the same node is a success, and no second one is made. The
        node's NetworkUnavailable condition follows from the outcome.

        Raises:
            AlreadyExists: the range has a route that leads elsewhere, and the cloud keeps one
                for each range. It is never taken over.
            FailedPrecondition: none of the node's addresses can be routed to yet.
            ResourceExhausted: the table is full.
        """

    @operation(deadline_s=ROUTE_S, change=True, subject=_destination)
    async def delete_route(self, cluster_name: str, route: Route) -> None:
        """Delete a route as `list_routes` returned it; silent when it is gone.

        Called for a route whose node is gone or has other ranges, for a duplicate and for
        one that leads nowhere. The cached node is looked at once more right before. What
        needs the range is created only after this has returned.
        """


class Clusters(Protocol):
    """Names of clusters. The daemon never calls it."""

    async def list_clusters(self) -> Sequence[str]:
        """Names of the clusters in this cloud."""

    async def master(self, cluster_name: str) -> str:
        """Address of a cluster's API server."""


class PVLabeler(Protocol):
    """Labels for volumes. Deprecated in Kubernetes; the daemon never calls it."""

    async def get_labels_for_volume(self, volume: Any) -> Mapping[str, str]:
        """Labels of a PersistentVolume."""


class InformerFactory(Protocol):
    """The daemon's shared caches, for a provider that wants to watch what it watches."""

    def on_node(self, handler: Callable[[Node | None, Node | None], None]) -> None:
        """Call `handler(old, new)` for every change of a Node; None where there is none.

        Handlers run in the event loop and must return at once. Existing nodes are
        delivered first.
        """

    def node(self, name: str) -> Node | None:
        """The cached Node; None when there is none."""


SetInformers = Callable[[InformerFactory], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """One cloud: its name and the capabilities it offers; None = not offered.

    Attributes:
        name: the provider's name; the scheme of provider IDs unless `schemes` says more.
        instances: instances by Node. Wins over `instances_v1` and `zones`.
        instances_v1: instances by provider ID and name.
        zones: zones, used with `instances_v1` only.
        clusters: never called by the daemon.
        load_balancer: load balancers.
        routes: pod routes.
        pv_labeler: never called by the daemon.
        set_informers: called once, before the caches start.
        inventory: bulk listing.
        machines: machine driver, for a machine controller; the daemon's node controllers
            never touch it.
        has_cluster_id: True when the cloud's objects carry a mark of this cluster, or none but
            this cluster's can be seen. A provider has to say so: otherwise the daemon refuses to
            start without `--allow-untagged-cloud`.
        schemes: provider-ID schemes that are ours, old spellings included. Empty = `name`.
            A node with another scheme is left alone entirely.
        foreign_ids: what provider IDs begin with that have one of these schemes and are another
            manager's all the same, such as those of a vendor's other product.
        limits: deadlines and rate the provider wants for its calls.
        service_annotations: prefixes of the Service annotations that the load balancers read; a
            change of any other annotation causes no call. None = every annotation counts.
        service_annotation_schema: those annotations one by one; a wrong value is refused, and a
            name below a prefix that is not among them warned about, when a Service is written
            and the admission webhook is on. Empty = nothing is checked.
        always_ensure_deleted: True = a deletion goes straight to `ensure_load_balancer_deleted`,
            which saves a call and also clears what `get_load_balancer` does not see. False =
            `get_load_balancer` is asked first where this process confirmed the load balancer and
            did nothing about it since; the Go reference always asks.
        load_balancers_check_health: False = the load balancers send traffic to every member,
            healthy or not: the daemon then makes Ready nodes members only.
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
    has_cluster_id: bool = False
    schemes: Sequence[str] = ()
    foreign_ids: Sequence[str] = ()
    limits: Limits = field(default_factory=Limits)
    service_annotations: Sequence[str] | None = None
    service_annotation_schema: Sequence[ServiceAnnotation[Any]] = ()
    always_ensure_deleted: bool = False
    load_balancers_check_health: bool = True

    def __new__(cls, *_: object, **fields: object) -> Self:
        """Create it; raises ProviderError for a field that does not exist."""
        check_fields(fields, where="the call of Cloud")
        return object.__new__(cls)

    @property
    def provider_schemes(self) -> Sequence[str]:
        """The provider-ID schemes that are ours."""
        return self.schemes or (self.name,)

    @property
    def machine_providers(self) -> Collection[str]:
        """Values of `MachineClass.provider` that the driver accepts, in upper or lower case."""
        # A driver need not derive from `Driver`.
        declared: Collection[str] = getattr(self.machines, "provider_names", ())
        return declared or (self.name,)


def check_fields(names: Collection[str], *, where: str) -> None:
    """Raise ProviderError for a name that no field of `Cloud` has."""
    known = Cloud.__dataclass_fields__
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise ProviderError(f"{where} names {name!r}, which is no field of Cloud; {advice}")


class InstancesByPower(ABC):
    """Base of instances: `InstancesV2` but for its metadata, and `InstanceStates`."""

    @abstractmethod
    async def instance_power(self, node: Node) -> Power:
        """Whether the instance is switched off; one in a state that you do not know runs.

        Raises:
            NotFound: there is none, on the cloud's word: it deletes the Node.
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
