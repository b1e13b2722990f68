"""From a load balancer as it is to what is asked for: which actions, in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ccm import cloud

from . import client, recipes


class Step(NamedTuple):
    """An action about a load balancer, and what it is told."""

    action: str
    order: Mapping[str, Any] | None

    @property
    def server(self) -> int | None:
        """ID of the server that it adds or removes as a target."""
        about = (self.order or {}).get("server")
        return about and int(about["id"])


READ_AGAIN = frozenset(
    {
        "attach_to_network",
        "detach_from_network",
        "enable_public_interface",
        "disable_public_interface",
        "update_service",
        "add_service",
    }
)
"""Actions that may change where, or how, a load balancer is reached."""


def steps(
    held: client.Balancer, recipe: recipes.Recipe, servers: Sequence[int], *, keep_ips: bool
) -> list[Step]:
    """All actions that it takes; the API has none for several things at once."""
    moves = list(_networks(held, recipe))
    leaving: list[Step] = []
    if any(one.action == "detach_from_network" for one in moves):
        # No network is left while targets are reached through it.
        stay = tuple(one for one in held.targets if not one.use_private_ip)
        through = [number for number, private in recipes.held_servers(held).items() if private]
        leaving = [Step("remove_target", recipes.target(each)) for each in sorted(through)]
        held = msgspec.structs.replace(held, targets=stay)
    return [
        *_properties(held, recipe),
        *leaving,
        *moves,
        *_ports(held, recipe),
        *targets(held, dict.fromkeys(servers, recipe.private_targets), keep_ips=keep_ips),
    ]


def release(held: client.Balancer, service: cloud.Service) -> tuple[Sequence[Step], Sequence[int]]:
    """Return what takes a Service off a load balancer that was adopted, and the ports that stay.

    A Service may go before all that it asks for was done. What it did not bring is somebody
    else's: a listener is the Service's where port and node port are, and targets are the Service's
    where no other listener sends traffic to them.
    """
    # A Service that is no load balancer any more may have lost its node ports.
    brought = {port.port: port.node_port for port in service.ports}
    ours = [
        one.listen_port
        for one in held.services
        if one.listen_port in brought and brought[one.listen_port] in (0, one.destination_port)
    ]
    stay = sorted({one.listen_port for one in held.services} - set(ours))
    steps = [Step("delete_service", {"listen_port": port}) for port in sorted(ours)]
    if not stay:
        gone = sorted(recipes.held_servers(held))
        steps += [Step("remove_target", recipes.target(one)) for one in gone]
    return steps, stay


def _properties(held: client.Balancer, recipe: recipes.Recipe) -> Iterator[Step]:
    for family, name in recipe.dns.items():
        address: client.Ip | None = getattr(held.public_net, family)
        if address and address.ip and address.dns_ptr != name:
            yield Step("change_dns_ptr", {"ip": address.ip, "dns_ptr": name})
    if recipe.algorithm not in (None, held.algorithm.type):
        yield Step("change_algorithm", {"type": recipe.algorithm})
    if recipe.type not in ("", held.load_balancer_type.name):
        yield Step("change_type", {"load_balancer_type": recipe.type})


def _networks(held: client.Balancer, recipe: recipes.Recipe) -> Iterator[Step]:
    if recipe.network is not None:
        is_in = False
        for one in held.private_net:
            if one.network == recipe.network and recipe.private_ip in (None, one.ip):
                is_in = True
            else:
                yield Step("detach_from_network", {"network": one.network})
        if not is_in:
            yield Step("attach_to_network", attachment(recipe))
    if recipe.public not in (None, held.public_net.enabled):
        word = "enable" if recipe.public else "disable"
        yield Step(f"{word}_public_interface", None)


def attachment(recipe: recipes.Recipe) -> Mapping[str, Any]:
    """The order to be in the network."""
    order: dict[str, Any] = {"network": recipe.network}
    if recipe.private_ip:
        order["ip"] = recipe.private_ip
    elif recipe.subnet:
        order["ip_range"] = recipe.subnet
    return order


def _ports(held: client.Balancer, recipe: recipes.Recipe) -> Iterator[Step]:
    there = {one.listen_port: one for one in held.services}
    for number in sorted(there.keys() - {one.listen_port for one in recipe.ports}):
        yield Step("delete_service", {"listen_port": number})
    for port in recipe.ports:
        found = there.get(port.listen_port)
        if found is None:
            yield Step("add_service", recipes.listener(port))
        elif not recipes.fits(found, port):
            yield Step("update_service", recipes.listener(port, found))


def targets(held: client.Balancer, wanted: Mapping[int, bool], *, keep_ips: bool) -> Iterator[Step]:
    """Yield the steps for members alone; a change of the way to one takes it out and in again.

    Args:
        held: the load balancer as it is.
        wanted: ID of each server -> whether it is reached by its private address.
        keep_ips: whether IP targets stay.
    """
    there = recipes.held_servers(held)
    for number in sorted(there):
        if wanted.get(number) != there[number]:
            yield Step("remove_target", recipes.target(number))
    for one in held.targets:
        if one.type == "ip" and not keep_ips:
            yield Step("remove_target", {"type": "ip", "ip": one.ip})
    for number in sorted(wanted):
        if there.get(number) != wanted[number]:
            yield Step("add_target", recipes.target(number, private=wanted[number]))
