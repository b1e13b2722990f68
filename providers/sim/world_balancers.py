"""The simulated cloud's load balancers. No I/O.

A load balancer is a record and the time at which it becomes `active`. Until then its state is
`provisioning` (new) or `updating` (changed), and clients can only rename or delete it. Clouds that
build load balancers from VMs behave like this. No background task exists: the state is computed on
read. Names are unique: a client that lost the response to a creation gets a conflict when it
repeats the creation. Reads are consistent: a call sees the effects of all earlier calls.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from ccm.base import clock

from . import world

NETWORKS: Mapping[tuple[bool, str], ipaddress.IPv4Network | ipaddress.IPv6Network] = {
    (False, "IPv4"): ipaddress.ip_network("198.18.0.0/15"),
    (True, "IPv4"): ipaddress.ip_network("10.254.0.0/16"),
    (False, "IPv6"): ipaddress.ip_network("2001:db8:1b::/64"),
    (True, "IPv6"): ipaddress.ip_network("fd00:1b::/64"),
}
"""(internal, family) -> network from which the addresses of load balancers are taken."""

State = Literal["provisioning", "active", "updating", "error"]
Family = Literal["IPv4", "IPv6"]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Listener(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Forwarding rule from `port` to `target_port` of a member. Protocol and port are unique."""

    protocol: Literal["TCP", "UDP"]
    port: Port
    target_port: Port


class Ingress(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Address of a load balancer."""

    family: Family
    ip: str


class HealthCheck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Health check of members: HTTP GET of `path`, or a TCP connection if `path` is empty."""

    port: Port
    path: str = ""
    interval_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0


class BalancerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of a load balancer, without its members.

    Empty `source_ranges` allow all sources. `sticky_s` 0 turns session affinity off.
    """

    listeners: tuple[Listener, ...]
    health_check: HealthCheck | None = None
    source_ranges: tuple[str, ...] = ()
    families: tuple[Family, ...] = ("IPv4",)
    internal: bool = False
    size: Literal["small", "large"] = "small"
    sticky_s: Annotated[int, msgspec.Meta(ge=0)] = 0


class NewBalancer(BalancerSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request that creates a load balancer without members: configuration, unique name, cluster."""

    name: str
    cluster: str = ""


class Balancer(NewBalancer, frozen=True, kw_only=True):
    """Load balancer as the API returns it.

    `reason` explains the state `error`. `ready_in_s` is the time until `state` is `active`.
    `unhealthy` members get no traffic. A `protected` load balancer cannot be deleted.
    """

    id: str
    state: State
    reason: str = ""
    ready_in_s: float = 0.0
    ingress: tuple[Ingress, ...] = ()
    members: tuple[str, ...] = ()
    unhealthy: tuple[str, ...] = ()
    protected: bool = False
    created: str = ""


class BalancerAdminChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change by the administrator, outside the client's control. Unset fields stay."""

    listeners: tuple[Listener, ...] | msgspec.UnsetType = msgspec.UNSET
    source_ranges: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    health_check: HealthCheck | msgspec.UnsetType | None = msgspec.UNSET
    members: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    unhealthy: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    state: Literal["active", "error"] | msgspec.UnsetType = msgspec.UNSET
    reason: str | msgspec.UnsetType = msgspec.UNSET
    protected: bool | msgspec.UnsetType = msgspec.UNSET


class Balancers(world.ObjectStore[Balancer]):
    """All load balancers of the simulated cloud.

    Args:
        rng: random source of the IDs.
    """

    kind, prefix = "load balancer", "lb"

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.provision_s = 0.0
        """Seconds that a new load balancer takes to become active."""
        self.change_s = 0.0
        """Seconds that a change takes."""
        self._ready_at: dict[str, float] = {}
        self._next_address = dict.fromkeys(NETWORKS, 0)
        self._member_addresses: dict[str, str] = {}
        """Valid addresses of members, each to itself. Thousands of load balancers have the same
        members, so each address is parsed and stored only once."""

    def create(self, order: NewBalancer) -> Balancer:
        """Create a load balancer.

        Raises:
            WorldError: `invalid`, `conflict` if the name is taken, or `quota_exceeded`.
        """
        self._check_name(order.name)
        _check(order)
        self._check_quota(len(self._by_id))
        new_balancer = Balancer(
            **msgspec.structs.asdict(order),
            id=self._new_id(),
            state="provisioning",
            created=clock.now().isoformat(timespec="milliseconds"),
        )
        return self._start_transition(
            self._assign_addresses(new_balancer), "provisioning", self.provision_s
        )

    def change(self, balancer_id: str, plan: BalancerSpec) -> Balancer:
        """Replace the configuration; name, cluster and members stay.

        Raises:
            WorldError: `not_found`, `invalid`, or `busy` while provisioning or updating.
        """
        present = self._get_changeable(balancer_id)
        _check(plan)
        changed = msgspec.structs.replace(present, **msgspec.structs.asdict(plan))
        return self._start_transition(self._assign_addresses(changed), "updating", self.change_s)

    def set_members(self, balancer_id: str, members: Sequence[str]) -> Balancer:
        """Replace the members.

        Raises:
            WorldError: `not_found`, `invalid`, or `busy` while provisioning or updating.
        """
        present = self._get_changeable(balancer_id)
        for member in members:
            if member not in self._member_addresses:
                world.check_text("members", ipaddress.ip_address, member)
                self._member_addresses[member] = member
        if len(set(members)) != len(members):
            raise world.WorldError("invalid", "members: duplicate address")
        changed = msgspec.structs.replace(
            present,
            members=tuple(self._member_addresses[member] for member in members),
            unhealthy=tuple(address for address in present.unhealthy if address in members),
        )
        return self._start_transition(changed, "updating", self.change_s)

    def rename(self, balancer_id: str, name: str) -> Balancer:
        """Change the name at once.

        Raises:
            WorldError: `not_found`, `invalid`, or `conflict` if the name is taken.
        """
        present = self.get(balancer_id)
        self._check_name(name, balancer_id)
        return self._put(msgspec.structs.replace(present, name=name))

    def interfere(self, balancer_id: str, interference: BalancerAdminChange) -> Balancer:
        """Apply an administrator's change at once.

        Raises:
            WorldError: `not_found`.
        """
        altered = world.apply_change(self.get(balancer_id), interference)
        if altered.state == "active":
            altered = msgspec.structs.replace(altered, reason="")
        if interference.state is not msgspec.UNSET:
            self._ready_at.pop(balancer_id, None)
        return self._put(altered)

    def delete(self, thing_id: str) -> None:
        """Delete a load balancer in any state.

        Raises:
            WorldError: `not_found`, or `protected`.
        """
        if self.get(thing_id).protected:
            raise world.WorldError("protected", "the load balancer is protected from deletion")
        self.remove(thing_id)

    def remove(self, balancer_id: str) -> None:
        """Delete a load balancer, even a protected one; for the administrator.

        Raises:
            WorldError: `not_found`.
        """
        super().delete(balancer_id)
        self._ready_at.pop(balancer_id, None)

    def _check_name(self, name: str, own_id: str = "") -> None:
        if not name:
            raise world.WorldError("invalid", "name: must not be empty")
        if any(other.name == name and other.id != own_id for other in self._by_id.values()):
            raise world.WorldError("conflict", f"a load balancer named {name} exists already")

    def _get_changeable(self, balancer_id: str) -> Balancer:
        present = self.get(balancer_id)
        if present.state in ("provisioning", "updating"):
            raise world.WorldError("busy", f"the load balancer is {present.state}")
        return present

    def _start_transition(self, balancer: Balancer, state: State, seconds: float) -> Balancer:
        new_state = balancer.state if balancer.state == "error" else state
        self._ready_at[balancer.id] = clock.monotonic() + seconds
        return self._put(msgspec.structs.replace(balancer, state=new_state))

    def _current(self, thing: Balancer) -> Balancer:
        if thing.state not in ("provisioning", "updating"):
            return thing
        left_s = self._ready_at.get(thing.id, 0.0) - clock.monotonic()
        if left_s <= 0:
            return msgspec.structs.replace(thing, state="active", ready_in_s=0.0)
        return msgspec.structs.replace(thing, ready_in_s=left_s)

    def _assign_addresses(self, balancer: Balancer) -> Balancer:
        """Return a copy with one address per family; valid addresses are kept."""
        present = {ingress.family: ingress.ip for ingress in balancer.ingress}
        ingresses: list[Ingress] = []
        for family in balancer.families:
            pool = (balancer.internal, family)
            ip = present.get(family)
            if ip is None or ipaddress.ip_address(ip) not in NETWORKS[pool]:
                ip = self._new_address(pool)
            ingresses.append(Ingress(family=family, ip=ip))
        return msgspec.structs.replace(balancer, ingress=tuple(ingresses))

    def _new_address(self, pool: tuple[bool, str]) -> str:
        taken = {entry.ip for balancer in self._by_id.values() for entry in balancer.ingress}
        network = NETWORKS[pool]
        while True:
            self._next_address[pool] = self._next_address[pool] % (2**15) + 1
            ip = str(network[self._next_address[pool]])
            if ip not in taken:
                return ip


def _check(plan: BalancerSpec) -> None:
    if not plan.listeners:
        raise world.WorldError("invalid", "listeners: at least one is required")
    if not plan.families:
        raise world.WorldError("invalid", "families: at least one is required")
    ports = [(listener.protocol, listener.port) for listener in plan.listeners]
    if len(set(ports)) != len(ports):
        raise world.WorldError("invalid", "listeners: duplicate protocol and port")
    for source_range in plan.source_ranges:
        world.check_text("source_ranges", ipaddress.ip_network, source_range)
