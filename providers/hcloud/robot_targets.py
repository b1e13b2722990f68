"""Dedicated servers (Robot) as IP targets of load balancers.

With credentials of Robot, a target is the public IPv4 address of the server, or the internal
address of its node if targets are private. Without credentials it is always the internal address.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence

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
        report: records a Warning event if its message changed.
    """

    def __init__(
        self, settings: config.Config, robot: robot.RobotClient | None, report: names.Warn
    ) -> None:
        self._settings = settings
        self._robot = robot
        self._report = report

    async def add(
        self,
        servers: Iterable[int],
        service: cloud.Service,
        nodes: Sequence[cloud.Node],
        held: client.Balancer | None,
        *,
        private: bool | None,
    ) -> tuple[Sequence[TargetKey], Mapping[str, str]]:
        """Return `servers` and all IP targets, existing ones first, and the IP targets as in `ips`.

        Sends one request if the listing of Robot is outdated. Other arguments as in `ips`.
        """
        if self._robot is not None:
            with contextlib.suppress(cloud.CloudError):  # then the addresses known before count
                await self._robot.servers()
        ips, unknown = self.ips(service, nodes, held, private=private)
        is_private = self._is_private(service, private)
        lacking = ", ".join(node.name for node in unknown if is_private)
        text = f"nodes without internal IPv4 address: {lacking}; set --node-ip of their kubelets"
        self._report(service.reference, names.INTERNAL_IP_NOT_CONFIGURED, lacking and text)
        for node in () if is_private else unknown:
            text = f"Robot has no public IPv4 address for {node.provider_id}"
            self._report(node.reference, names.SERVER_NOT_FOUND, text)
        return balancer_specs.existing_first([*servers, *ips], held, ips), ips

    def ips(
        self,
        service: cloud.Service,
        nodes: Iterable[cloud.Node],
        held: client.Balancer | None,
        *,
        private: bool | None,
    ) -> tuple[Mapping[str, str], Sequence[cloud.Node]]:
        """Return the IP targets, and the nodes without a usable address. No I/O.

        The result maps each IP target to the other address of its server, empty if it has none.
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
            return dict.fromkeys(present if balancer_specs.has_robot_nodes(nodes) else (), ""), []
        is_private = self._is_private(service, private)
        known = self._robot.known if self._robot else None
        terms = parse_labels(ann.read_or_none(service, ann.NODE_SELECTOR) or "")
        ips, unknown = dict[str, str](), []
        for node in nodes:
            number = robot.find_number(node.provider_id)
            if number is None or not all(term.matches(node.labels) for term in terms):
                continue
            server = (known or {}).get(number)
            public = (server and server.ip) or _ipv4(node, "ExternalIP")
            internal = _ipv4(node, "InternalIP")
            pair = [internal, public] if is_private else [public, internal]
            if private is None:
                pair.sort(key=lambda ip: ip not in present)
            if pair[0]:
                ips[pair[0]] = pair[1]
            else:
                unknown.append(node)
        if unknown and not is_private and known is None:
            # Robot has not answered yet: an unknown address is no reason to remove a target.
            return dict.fromkeys(present, "") | ips, []
        return dict(sorted(ips.items())), unknown

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
