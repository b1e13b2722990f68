"""Dedicated servers (Robot) as IP targets of load balancers.

With credentials of Robot, a target is the public IPv4 address of the server, or the internal
address of its node if targets are private. Without credentials it is always the internal address.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from ccm import cloud
from ccm.model.selectors import parse_labels

from . import balancer_specs, client, config, names, robot
from . import service_annotations as ann
from .balancer_specs import TargetKey, first_set, target_ips


class RobotTargets:
    """IP targets of load balancers.

    Args:
        settings: settings.
        robot: client of the Robot web service; None without credentials.
        warn: emits a Warning event.
    """

    def __init__(
        self, settings: config.Config, robot: robot.RobotClient | None, warn: names.Warn
    ) -> None:
        self._settings = settings
        self._robot = robot
        self._warn = warn

    async def add(
        self,
        servers: Iterable[int],
        service: cloud.Service,
        nodes: Sequence[cloud.Node],
        held: client.Balancer | None,
        *,
        private: bool | None,
    ) -> Sequence[TargetKey]:
        """Return `servers` and all IP targets; those that the load balancer has come first.

        Sends one request if the listing of Robot is outdated. Other arguments as in `ips`.
        """
        if self._robot is not None:
            with contextlib.suppress(cloud.CloudError):  # then the addresses known before count
                await self._robot.servers()
        ips, unknown = self.ips(service, nodes, held, private=private)
        for node in unknown:
            if self._is_private(service, private):
                text = f"node {node.name} has no internal IPv4 address; set its kubelet's --node-ip"
                self._warn(service.reference, names.INTERNAL_IP_NOT_CONFIGURED, text)
            else:
                text = f"Robot has no public IPv4 address for {node.provider_id}"
                self._warn(node.reference, names.SERVER_NOT_FOUND, text)
        return balancer_specs.existing_first([*servers, *ips], held)

    def ips(
        self,
        service: cloud.Service,
        nodes: Iterable[cloud.Node],
        held: client.Balancer | None,
        *,
        private: bool | None,
    ) -> tuple[Sequence[str], Sequence[cloud.Node]]:
        """Return the IP targets, and the nodes without a usable address. No I/O.

        Without `ROBOT_ENABLED`, existing targets stay if there are dedicated servers.

        Args:
            service: Service of the load balancer.
            nodes: its members; only dedicated servers count.
            held: the existing load balancer, if any.
            private: whether targets are private; None = as specified, except that existing targets
                keep their kind of address.
        """
        present = target_ips(held) if held else []
        if not self._settings.robot_enabled:
            return present if balancer_specs.has_robot_nodes(nodes) else [], []
        is_private = self._is_private(service, private)
        known = self._robot.known if self._robot else None
        terms = parse_labels(ann.read_or_none(service, ann.NODE_SELECTOR) or "")
        ips, unknown = set[str](), []
        for node in nodes:
            number = robot.find_number(node.provider_id)
            if number is None or not all(term.matches(node.labels) for term in terms):
                continue
            server = (known or {}).get(number)
            public = (server and server.ip) or _ipv4(node, "ExternalIP")
            internal = _ipv4(node, "InternalIP")
            asked = internal if is_private else public
            kept = [ip for ip in (public, internal) if private is None and ip in present]
            if ip := next(iter(kept), asked):
                ips.add(ip)
            else:
                unknown.append(node)
        if unknown and not is_private and known is None:
            # Robot has not answered yet: an unknown address is no reason to remove a target.
            return sorted(ips.union(present)), []
        return sorted(ips), unknown

    def _is_private(self, service: cloud.Service, private: bool | None) -> bool:
        return self._robot is None or first_set(
            private,
            ann.read_or_none(service, ann.USE_PRIVATE_IP),
            self._settings.balancers_use_private_ip,
        )


def _ipv4(node: cloud.Node, kind: str) -> str:
    """Return the first IPv4 address of a type; empty if there is none."""
    texts = [entry.address for entry in node.addresses if entry.type == kind]
    return next((text for text in texts if ":" not in text), "")
