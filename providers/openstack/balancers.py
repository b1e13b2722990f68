"""Load balancers of OpenStack (Octavia), with floating IPs and security groups.

Names, tags and descriptions are those of openstack-cloud-controller-manager. A load balancer is
found by the ID in an annotation, or else by its name; later calls continue where an interrupted
call stopped. Octavia refuses a change while it works on a load balancer: during a creation or
deletion, calls raise `RetryAfter`; between the changes of one call, the call waits a few seconds.

Services can share a load balancer: each has the listeners with its own name as tag.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

import msgspec

from ccm import cloud
from ccm.base.clock import monotonic

from . import balancer_specs, client, config, floating_ips, metrics, octavia, security_groups
from . import service_annotations as ann
from .balancer_specs import NAME_PREFIX, Body, Part, Request, key_of, set_fields
from .instances import parse_id
from .neutron import Neutron
from .octavia import ACTIVE, BALANCERS, ERROR, LISTENERS, MONITORS, POOLS, HeldPart

T = TypeVar("T")

RETRY_S = 2.0
"""Retry delay, in seconds, while a load balancer is created, changed or deleted."""

PAUSES_S: Sequence[float] = (2.0, 2.0, 2.0, 2.0)
"""Pauses, in seconds, before the reads of a load balancer that a call waits for."""

SETTLED_S = 90.0
"""Seconds after which a load balancer whose creation ended without a clear response is listed, if
it exists. Proxies and databases usually end a request after 30 to 60 seconds."""

UNCLEAR = (cloud.DeadlineExceeded, cloud.Unavailable, cloud.Unknown, asyncio.CancelledError)
"""Errors of a creation that may have succeeded, unless they have an error code of Octavia."""

RANGES_IGNORED = "LoadBalancerSourceRangesIgnored"
"""The version or provider of Octavia has no source ranges."""

ZONES_IGNORED = "LoadBalancerAvailabilityZonesIgnored"
"""The version or provider of Octavia has no availability zones."""

RENAMED = "LoadBalancerRename"
"""The load balancer, or a tag of it, had the name of another cluster and was renamed."""

KEPT = "LoadBalancerKept"
"""The load balancer of a deleted Service has marks with the name of another cluster."""

PATCHER = "openstack-load-balancers"
"""Name of the API client that writes annotations to Services."""


class OpenStackBalancers:
    """Implementation of `LoadBalancer`, `LoadBalancerDigests` and `LoadBalancerRemoval`."""

    unsettled: ClassVar[dict[str, float]] = {}
    """Name of a load balancer -> monotonic time until which it may appear, because its creation
    ended without a clear response. Names are not unique: a second creation would add one. Changed
    settings, such as a longer `request-timeout`, create a new object, which must know them too."""

    def __init__(self, api: client.Client, settings: config.Config, context: cloud.Context) -> None:
        self._api = octavia.Octavia(api)
        self._ips = floating_ips.FloatingIps(api, context)
        self._groups = security_groups.SecurityGroups(api, context)
        self._neutron = Neutron(api)
        self._config = settings
        self._settings = settings.load_balancer
        self._context = context
        self._patcher: cloud.ApiClient | None = None
        self._addresses: dict[str, tuple[Any, str]] = {}
        """UID of a Service -> what its address depends on, and the address; until the next listing
        of all load balancers, which shows changes made by others."""
        self._without_group: set[str] = set()
        """UIDs of Services that have no security group left from earlier settings."""
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        """ID of a load balancer -> lock, held from the read of its tags to their change, which
        replaces all tags, or to its deletion: Services that share a load balancer may be
        reconciled at the same time."""

    def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:
        """Return `kube_service_<cluster>_<namespace>_<name>`, cut to 255 characters."""
        return balancer_specs.balancer_name(cluster_name, service)

    async def get_load_balancer(
        self, cluster_name: str, service: cloud.Service
    ) -> cloud.Status | None:
        """Return the status of the load balancer; None if it does not exist.

        Sends one to five requests. The status has no addresses until the creation is complete.
        """
        request = await self._request(cluster_name, service, tolerant=True)
        for held in await self._find_all(request):
            if held.provisioning_status == "PENDING_CREATE":
                return cloud.Status()
            existing = await self._ips.of_port(held.vip_port_id)
            return request.status(existing.floating_ip_address if existing else held.vip_address)
        return None

    @metrics.RECONCILES.observe("loadbalancer_ensure")
    async def ensure_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> cloud.Status:
        """Create or update the load balancer.

        Sends one request to find it, one to create it, three or more to read it, and one for each
        change.

        Raises:
            InvalidArgument: the Service asks for something the cloud does not offer.
            FailedPrecondition: the load balancer may not be shared, or the name is taken.
            RetryAfter: the cloud works on the load balancer, or an earlier creation ended without a
                clear response.
            Aborted: the load balancer is in state ERROR.
        """
        request = await self._request(cluster_name, service)
        wanted = request.parts(nodes)
        held = await self._find(request) or await self._create(request, nodes)
        self.unsettled.pop(held.name, None)
        await self._check_status(request, held)
        self._warn_of_missing_features(request)
        former = request.former_names(held)
        is_owner = held.name in (request.name, *former)
        parts = await self._api.parts(held.id)
        own = balancer_specs.own_parts(parts, request.name, *former)
        if not is_owner:
            self._check_sharing(request, held)
        _check_ports(wanted, held, [part for part in parts if part not in own])
        changes = _Changes(self._api, held)
        if request.features.has("tags") and request.name not in held.tags and not former:
            async with self._lock(held):
                held = await self._api.balancer(held.id) or held
                await changes.change_balancer({"tags": [*held.tags, request.name]})
        await changes.ensure_parts(request.parts(nodes, held.vip_subnet_id), own, request.name)
        if former:  # last: an interrupted call finds the parts by the old name
            await self._rename(request, held, changes)
        await changes.finish()
        address = await self._ensure_address(request, held, is_owner=is_owner)
        await self._ensure_group(request, held, nodes)
        await self._annotate(service, held, address)
        return request.status(address)

    @metrics.RECONCILES.observe("loadbalancer_update")
    async def update_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> None:
        """Update the members: three or more requests to read them, one per pool that differs.

        Raises:
            NotFound: the load balancer does not exist.
            RetryAfter: the cloud works on the load balancer.
        """
        # An invalid annotation must not keep deleted nodes as members.
        request = await self._request(cluster_name, service, tolerant=True)
        held = next(iter(await self._find_all(request)), None)
        if held is None:
            raise cloud.NotFound(f"no load balancer for {service.key}")
        ports = {key_of(port.protocol, port.port): port for port in service.ports}
        changes = _Changes(self._api, held)
        parts = await self._api.parts(held.id)
        for part in balancer_specs.own_parts(parts, request.name):
            port = ports.get(key_of(part.listener.protocol, part.listener.protocol_port))
            if part.pool is not None and port is not None:
                members = request.members(port, nodes, held.vip_subnet_id)
                await changes.ensure_members(part.pool.id, members, part.members)
        await changes.finish()
        if self._settings.manage_security_groups:
            await self._open_node_ports(request, held, nodes)

    @metrics.RECONCILES.observe("loadbalancer_delete")
    async def ensure_load_balancer_deleted(self, cluster_name: str, service: cloud.Service) -> None:
        """Delete the load balancer, its floating IP and the security group of the Service.

        Of a shared load balancer, only the listeners and the tag of the Service are removed.

        Raises:
            RetryAfter: the cloud works on the load balancer, or still deletes it; or it may appear,
                because its creation ended without a clear response.
        """
        request = await self._request(cluster_name, service, tolerant=True)
        for held in await self._find_all(request):
            self.unsettled.pop(held.name, None)
            await self._delete(request, held)
        self._check_settled(request.name)
        await self._groups.remove(security_groups.group_name(service))
        self._addresses.pop(service.uid, None)
        self._without_group.discard(service.uid)

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """Delete the load balancer of a Service of this cluster by name, with all its parts.

        Raises:
            RetryAfter: the cloud works on the load balancer, or still deletes it.
        """
        cluster, *key = balancer_specs.parse_name(name) or ("",)
        if cluster != cluster_name or not key:
            return
        service = cloud.Service(metadata=cloud.ObjectMeta(namespace=key[0], name=key[1]))
        request = await self._request(cluster_name, service)
        for held in await self._find_all(request):
            await self._delete(request, held)
        await self._groups.remove_of(*key)

    async def list_load_balancers(self, cluster_name: str) -> Sequence[cloud.LoadBalancerRecord]:
        """Return the load balancers of all Services of this cluster.

        Sends five requests or more, and one for each pool.
        """
        features = await self._features()
        self._addresses.clear()
        listed = [
            (name, held)
            for held in await self._api.balancers({})
            for name in _names(held, cluster_name)
        ]
        parts = await self._api.all_parts({held.id for _, held in listed}) if listed else {}
        ips = {entry.port_id: entry for entry in await self._ips.find({})} if listed else {}
        groups = {key for key, _ in await self._groups.of_services()} if listed else set[str]()
        records = []
        for name, held in listed:
            own = balancer_specs.own_parts(parts.get(held.id, ()), name)
            rows = [balancer_specs.held_row(part, features) for part in own]
            ip = ips.get(held.vip_port_id)
            _, namespace, service_name = balancer_specs.parse_name(name) or ("", "", "")
            has_group = f"{namespace}-{service_name}" in groups
            digest = balancer_specs.digest(name, ip is not None, has_group, rows)
            is_proxied = any(part.pool and part.pool.protocol.startswith("PROXY") for part in own)
            address = ip.floating_ip_address if ip else held.vip_address
            records.append(
                cloud.LoadBalancerRecord(
                    name=name,
                    digest=digest if held.provisioning_status == ACTIVE else "",
                    status=balancer_specs.status(address, self._settings, is_proxied=is_proxied),
                    adopted=not held.name.startswith(NAME_PREFIX),
                )
            )
        return records

    def load_balancer_digest(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> str:
        """Return the digest that the load balancer has after `ensure_load_balancer`."""
        version = self._api.version or octavia.NEW  # a listing has read it
        features = octavia.Features(version, self._settings.lb_provider)
        return Request(cluster_name, service, self._config, features).digest(nodes)

    # --- finding ----------------------------------------------------------------------------------

    async def _features(self) -> octavia.Features:
        return octavia.Features(await self._api.read_version(), self._settings.lb_provider)

    async def _request(
        self, cluster_name: str, service: cloud.Service, *, tolerant: bool = False
    ) -> Request:
        return Request(cluster_name, service, self._config, await self._features(), tolerant)

    async def _find(self, request: Request) -> octavia.Balancer | None:
        """Return the load balancer that the annotation or the name selects; None = create one."""
        service, name = request.service, request.name
        if balancer_id := request.read(ann.BALANCER_ID, ""):
            held = await self._api.balancer(balancer_id)
            if held is not None:
                return held
            if ann.BALANCER_ADDRESS.name not in service.annotations:
                raise cloud.InvalidArgument(
                    f"annotation {ann.BALANCER_ID.name}: load balancer {balancer_id} does not "
                    "exist; correct the ID, or remove the annotation to get a new load balancer"
                )
        named = await self._api.balancers({"name": name})
        ids = ", ".join(sorted(held.id for held in named))
        if len(named) > 1:
            raise cloud.FailedPrecondition(
                f"load balancers {ids} have the same name {name}; delete all but one"
            )
        if named and not balancer_specs.is_marked(named[0], name):
            raise cloud.FailedPrecondition(
                f"load balancer {name} exists, but was not created for {service.key}; rename it, "
                f"or use it with the annotation {ann.BALANCER_ID.name}={ids}"
            )
        return named[0] if named else None

    async def _find_all(self, request: Request) -> list[octavia.Balancer]:
        """Return the load balancers with parts of a Service, whatever its annotations are."""
        name = request.name
        for key in ("tags", "name"):
            if request.features.has(key):
                listed = await self._api.balancers({key: name})
                if marked := [held for held in listed if balancer_specs.is_marked(held, name)]:
                    return marked
        balancer_id = request.read(ann.BALANCER_ID, "")
        held = await self._api.balancer(balancer_id) if balancer_id else None
        # The name of the cluster has changed, or another client removed the tag, and the load
        # balancer was not ensured since then.
        is_own = held and (request.former_names(held) or request.name in await self._tags(held))
        return [held] if held and is_own else []

    async def _tags(self, held: octavia.Balancer) -> list[str]:
        """Return the tags of a load balancer and of its listeners: both show its Services.

        A change replaces all tags, so that another client can remove one that it did not know.
        """
        listeners = await self._api.listeners({"loadbalancer_id": held.id})
        return [*held.tags, *(tag for each in listeners for tag in each.tags)]

    def _lock(self, held: octavia.Balancer) -> asyncio.Lock:
        return self._locks.setdefault(held.id, asyncio.Lock())

    # --- creation and changes ---------------------------------------------------------------------

    async def _create(self, request: Request, nodes: Sequence[cloud.Node]) -> octavia.Balancer:
        self._check_settled(request.name)
        networks = request.networks
        subnet = networks.subnet_id
        if not (subnet or networks.network_id or request.read(ann.PORT, "")):
            subnet = await self._subnet_of(request, nodes)
        try:
            return await self._api.create(request.order(request.parts(nodes, subnet), subnet))
        except UNCLEAR as error:
            # With an error code, Octavia itself has ended the creation.
            if not getattr(getattr(error, "refusal", None), "code", ""):
                self.unsettled[request.name] = monotonic() + SETTLED_S
            raise

    def _check_settled(self, name: str) -> None:
        """Raise RetryAfter if a load balancer that does not exist may still appear."""
        if monotonic() < self.unsettled.get(name, 0.0):
            text = f"load balancer {name} may still appear: its creation got no clear response"
            raise cloud.RetryAfter(f"{text}; wait {SETTLED_S:.0f} s at most", seconds=RETRY_S)

    async def _subnet_of(self, request: Request, nodes: Sequence[cloud.Node]) -> str:
        """Return the subnet of the first node, for a load balancer without configured network."""
        for node in nodes:
            ips = balancer_specs.addresses([node], request.is_ipv6).values()
            ports, _ = await self._neutron.ports_of("device_id", _servers(request, [node]))
            for fixed in (fixed for port in ports for fixed in port.fixed_ips):
                if fixed.ip_address in ips:
                    return fixed.subnet_id
        raise cloud.FailedPrecondition(
            "the subnet of the load balancer is unknown: no node is in a subnet; set subnet-id, or "
            f"the annotation {ann.SUBNET.name}"
        )

    def _warn_of_missing_features(self, request: Request) -> None:
        features, service = request.features, request.service
        what = f"provider {features.provider} of Octavia {'.'.join(map(str, features.version))}"
        is_open = cloud.is_allow_all(cloud.load_balancer_source_ranges(service))
        has_groups = features.provider == "ovn" and self._settings.manage_security_groups
        if not (features.has("allowed_cidrs") or has_groups or is_open):
            text = f"source ranges are ignored, because the {what} has none"
            self._context.warn(service.reference, RANGES_IGNORED, text)
        zone = request.read(ann.ZONE, self._settings.availability_zone)
        if zone and not features.has("availability_zone"):
            text = f"availability zone {zone} is ignored, because the {what} has none"
            self._context.warn(service.reference, ZONES_IGNORED, text)

    async def _check_status(self, request: Request, held: octavia.Balancer) -> None:
        """Raise an error unless the load balancer can be changed.

        A load balancer whose creation failed is deleted first: nothing else can repair it, and it
        never had an address.
        """
        if held.provisioning_status == ERROR:
            is_new = held.name == request.name and not request.service.ingress
            if is_new and not balancer_specs.service_tags(held.tags, request.name):
                await self._start_deletion(request, held, _Changes(self._api, held))
                advice = "the creation failed, so that it was deleted and is created again"
            else:
                advice = "an administrator must repair it, or recreate the Service"
            raise cloud.Aborted(
                f"load balancer {held.name} ({held.id}) is in state ERROR, operating status "
                f"{held.operating_status or 'unknown'}; {advice}"
            )
        if held.provisioning_status != ACTIVE:
            raise _pending(held.name, held.provisioning_status)
        if (":" in held.vip_address) is not request.is_ipv6:
            raise cloud.InvalidArgument(
                f"load balancer {held.name} has the address {held.vip_address}, which is not of "
                "the first of spec.ipFamilies; correct that field, or recreate the Service"
            )

    def _check_sharing(self, request: Request, held: octavia.Balancer) -> None:
        """Raise an error if the Service may not use a load balancer that it does not own."""
        place = f"annotation {ann.BALANCER_ID.name}"
        if not request.features.has("tags"):
            raise cloud.InvalidArgument(
                f"{place}: load balancers cannot be shared, because this version of Octavia has no "
                "tags; remove the annotation"
            )
        if request.is_internal:
            raise cloud.InvalidArgument(
                f"{place}: an internal Service cannot share a load balancer, which may become "
                "public; remove the annotation"
            )
        others = balancer_specs.service_tags(held.tags, request.name, *request.former_names(held))
        if request.name not in held.tags and len(others) >= self._settings.max_shared_lb:
            raise cloud.FailedPrecondition(
                f"load balancer {held.id} is shared by {len(others)} Services already; use "
                "another, or increase max-shared-lb"
            )

    async def _rename(self, request: Request, held: octavia.Balancer, changes: _Changes) -> None:
        """Replace the old name of the cluster in the Service's marks of the load balancer."""
        former, order = request.former_names(held), dict[str, Any]()
        if held.name in former:
            order = {"name": request.name, "description": request.description}
        async with self._lock(held):
            if request.features.has("tags"):
                now = await self._api.balancer(held.id) or held
                order["tags"] = [*(tag for tag in now.tags if tag not in former), request.name]
            await changes.change_balancer(order)
        text = f"load balancer {held.id}: {', '.join(former)} was renamed to {request.name}"
        self._context.warn(request.service.reference, RENAMED, text)

    async def _ensure_address(
        self, request: Request, held: octavia.Balancer, *, is_owner: bool
    ) -> str:
        service = request.service
        is_kept = request.read(ann.KEEP_FLOATING_IP, False)
        wanted = (request.is_internal, request.networks, service.spec.load_balancer_ip, is_kept)
        depends_on = (held.id, held.vip_port_id, wanted)
        known = self._addresses.get(service.uid)
        if known is None or known[0] != depends_on:
            address = await self._ips.ensure(request, held, is_owner=is_owner)
            known = self._addresses[service.uid] = (depends_on, address)
        return known[1]

    async def _ensure_group(
        self, request: Request, held: octavia.Balancer, nodes: Sequence[cloud.Node]
    ) -> None:
        uid = request.service.uid
        if self._settings.manage_security_groups:
            await self._open_node_ports(request, held, nodes)
        elif uid not in self._without_group:
            # The setting may have been on before the start.
            await self._groups.remove(security_groups.group_name(request.service))
            self._without_group.add(uid)

    async def _open_node_ports(
        self, request: Request, held: octavia.Balancer, nodes: Sequence[cloud.Node]
    ) -> None:
        service = request.service
        ports = [(port.protocol, port.node_port) for port in service.ports if port.node_port]
        _, health_port = cloud.health_check_path_port(service)
        if health_port:
            ports.append(("TCP", health_port))
        subnet = request.member_subnet(held.vip_subnet_id) or held.vip_subnet_id
        if self._settings.lb_provider == "ovn":  # members see the clients' addresses
            sources = request.source_ranges
        else:
            sources = [await self._ips.subnet_cidr(subnet)] if subnet else []
        await self._groups.ensure(service, ports, sources, _servers(request, request.select(nodes)))

    async def _annotate(self, service: cloud.Service, held: octavia.Balancer, address: str) -> None:
        """Write ID and address of the load balancer to the Service.

        Without a cluster, as in contract tests, nothing is written.
        """
        values = {ann.BALANCER_ID.name: held.id, ann.BALANCER_ADDRESS.name: address}
        if self._context.clients is None or values.items() <= service.annotations.items():
            return
        if self._patcher is None:
            self._patcher = self._context.clients.client(PATCHER)
        # With the UID, the API server refuses to patch another Service of that name.
        body = {"metadata": {"uid": service.uid, "annotations": values}}
        path = f"/api/v1/namespaces/{service.namespace}/services/{service.name}/status"
        data, kind = msgspec.json.encode(body), "application/merge-patch+json"
        try:
            await self._patcher.request("PATCH", path, body=data, content_type=kind)
        except Exception as error:  # `ApiClient` declares no error classes
            text = f"annotations of {service.key} cannot be written: {error}"
            raise cloud.Unavailable(text) from error

    # --- deletion ---------------------------------------------------------------------------------

    async def _delete(self, request: Request, held: octavia.Balancer) -> None:
        """Delete a load balancer, or release it if it is shared or was created by a user.

        Raises:
            RetryAfter: the deletion is not complete.
        """
        if held.provisioning_status not in (ACTIVE, ERROR):
            raise _pending(held.name, held.provisioning_status)
        name, changes = request.name, _Changes(self._api, held)
        async with self._lock(held):
            held = await self._api.balancer(held.id) or held
            marks = await self._tags(held) or [held.name]
            if held.name.startswith(NAME_PREFIX) and not balancer_specs.service_tags(marks, name):
                await self._start_deletion(request, held, changes)
                raise _pending(held.name, octavia.PENDING_DELETE)
            for part in balancer_specs.own_parts(await self._api.parts(held.id), name):
                await changes.delete_part(part)
            if name in held.tags:  # last, because a repeated call finds the load balancer by it
                await changes.change_balancer({"tags": [tag for tag in held.tags if tag != name]})
        if former := request.former_names(held):
            # They may also be the marks of an equally named Service of another cluster.
            text = f"load balancer {held.id} was kept, because of its marks {', '.join(former)}"
            self._context.warn(request.service.reference, KEPT, text)

    async def _start_deletion(
        self, request: Request, held: octavia.Balancer, changes: _Changes
    ) -> None:
        # Before the load balancer, whose port shows which floating IP is to be deleted.
        await self._ips.release(held, keep=request.read(ann.KEEP_FLOATING_IP, False))
        cascade = self._settings.cascade_delete
        for part in () if cascade else await self._api.parts(held.id):
            await changes.delete_part(part)
        await changes.run(lambda: self._api.delete(held.id, cascade=cascade))


class _Changes:
    """Changes of one load balancer: Octavia accepts each after it has completed the one before."""

    def __init__(self, api: octavia.Octavia, held: octavia.Balancer) -> None:
        self._api = api
        self._held = held
        self._number = 0

    async def run(self, change: Callable[[], Awaitable[T]]) -> T:
        """Send a change, after the one before is complete.

        Raises:
            RetryAfter: the load balancer is still being changed.
            Aborted: the change before failed.
        """
        if self._number:
            # Usually the change before takes less than this, so that nothing has to be read.
            await asyncio.sleep(PAUSES_S[0])
        self._number += 1
        try:
            return await change()
        except client.Immutable:
            await self._wait()
            return await change()

    async def finish(self) -> None:
        """Wait until the last change is complete; return at once if there was none."""
        if self._number:
            await self._wait()

    async def _wait(self) -> None:
        for pause in PAUSES_S:
            await asyncio.sleep(pause)
            held = await self._api.balancer(self._held.id)
            status = held.provisioning_status if held else octavia.DELETED
            if status == ACTIVE:
                return
            if status in (ERROR, octavia.DELETED):
                name = f"{self._held.name} ({self._held.id})"
                raise cloud.Aborted(f"load balancer {name} is in state {status} after a change")
        raise _pending(self._held.name, status)

    async def change(self, path: str, key: str, order: Body) -> None:
        """Change a resource, unless there is nothing to change."""
        if order:
            await self.run(lambda: self._api.send("PUT", path, key, order))

    async def change_balancer(self, order: Body) -> None:
        """Change the load balancer itself."""
        await self.change(f"{BALANCERS}/{self._held.id}", "loadbalancer", order)

    async def _create(self, path: str, key: str, order: Body) -> str:
        return (await self.run(lambda: self._api.send("POST", path, key, set_fields(order)))).id

    async def _delete(self, path: str) -> None:
        await self.run(lambda: self._api.delete_part(path))

    async def ensure_parts(self, parts: Sequence[Part], own: Sequence[HeldPart], name: str) -> None:
        """Create, change and delete listeners; those that are in the way of new ones first."""
        wanted = {
            key_of(part.listener["protocol"], part.listener["protocol_port"]): part
            for part in parts
        }
        present: dict[Any, HeldPart] = {}
        surplus: list[HeldPart] = []
        for held in own:
            key = key_of(held.listener.protocol, held.listener.protocol_port)
            if key not in wanted:
                surplus.append(held)
            elif wanted[key].listener["protocol"] == held.listener.protocol:
                present[key] = held
            else:
                await self.delete_part(held)
        for key, part in wanted.items():
            await self._ensure_part(part, present.get(key), name)
        for held in surplus:
            await self.delete_part(held)

    async def _ensure_part(self, new: Part, held: HeldPart | None, owner: str) -> None:
        if held is None:
            order = {**new.listener, "loadbalancer_id": self._held.id}
            listener_id = await self._create(LISTENERS, "listener", order)
        else:
            listener_id = held.listener.id
            changes = balancer_specs.changed_fields(held.listener, new.listener, owner)
            await self.change(f"{LISTENERS}/{listener_id}", "listener", changes)
        if held and held.pool and held.pool.protocol != new.pool["protocol"]:
            await self._delete(f"{POOLS}/{held.pool.id}")
            held = None
        if held is None or held.pool is None:
            order = {**new.pool, "listener_id": listener_id}
            pool_id = await self._create(POOLS, "pool", order)
            await self.ensure_members(pool_id, new.members, ())
            await self._ensure_monitor(pool_id, new.monitor, None, owner)
        else:
            pool_id = held.pool.id
            changes = balancer_specs.changed_fields(held.pool, new.pool, owner)
            await self.change(f"{POOLS}/{pool_id}", "pool", changes)
            await self.ensure_members(pool_id, new.members, held.members)
            await self._ensure_monitor(pool_id, new.monitor, held.monitor, owner)

    async def _ensure_monitor(
        self, pool_id: str, new: Body | None, held: octavia.Monitor | None, owner: str
    ) -> None:
        if held is not None and (new is None or new["type"] != held.type):
            await self._delete(f"{MONITORS}/{held.id}")
            held = None
        if new is not None and held is None:
            await self._create(MONITORS, "healthmonitor", {**new, "pool_id": pool_id})
        elif new is not None and held is not None:
            changes = balancer_specs.changed_fields(held, new, owner)
            await self.change(f"{MONITORS}/{held.id}", "healthmonitor", changes)

    async def ensure_members(
        self, pool_id: str, members: Sequence[Body], held: Sequence[octavia.Member]
    ) -> None:
        """Replace the members of a pool if they differ."""
        if not balancer_specs.same_members(held, members):
            await self.run(lambda: self._api.put_members(pool_id, members))

    async def delete_part(self, part: HeldPart) -> None:
        """Delete a listener with its pool; the pool first, which is found by the listener."""
        if part.pool is not None:
            await self._delete(f"{POOLS}/{part.pool.id}")
        await self._delete(f"{LISTENERS}/{part.listener.id}")


def _check_ports(
    wanted: Sequence[Part], held: octavia.Balancer, others: Sequence[HeldPart]
) -> None:
    """Raise an error if other parts listen on a wanted port."""
    keys = {key_of(each.listener["protocol"], each.listener["protocol_port"]) for each in wanted}
    for listener in (part.listener for part in others):
        if key_of(listener.protocol, listener.protocol_port) in keys:
            raise cloud.FailedPrecondition(
                f"port {listener.protocol_port} of load balancer {held.name} belongs to another "
                "Service or user; choose another port or load balancer"
            )


def _names(held: octavia.Balancer, cluster_name: str) -> list[str]:
    """Return the names of the Services of a cluster that use a load balancer.

    Its name counts only without tags: the Service that it is named after may have left it.
    """
    return [
        name
        for name in sorted({*balancer_specs.service_tags(held.tags)} or {held.name})
        if (balancer_specs.parse_name(name) or [""])[0] == cluster_name
        and balancer_specs.is_marked(held, name)
    ]


def _servers(request: Request, nodes: Iterable[cloud.Node]) -> list[str]:
    """Return the IDs of the nodes' servers; nodes that are no servers of this cloud have none."""
    servers = []
    for node in nodes:
        with contextlib.suppress(cloud.InvalidArgument):
            servers.append(parse_id(node.provider_id, request.conf.global_.region))
    return servers


def _pending(name: str, status: str) -> cloud.RetryAfter:
    return cloud.RetryAfter(f"load balancer {name} is {status}", seconds=RETRY_S)
