"""The calls of the API: method, path, what they do. The fake has those that anybody here uses."""

from __future__ import annotations

from dataclasses import dataclass

from . import balancers, catalog, extras, networks, servers
from .answers import Handler


@dataclass(frozen=True, slots=True)
class Operation:
    """One call; `path` as the vendor's document writes it, behind `/v1`."""

    method: str
    path: str
    handler: Handler

    @property
    def name(self) -> str:
        """Method and path."""
        return f"{self.method} {self.path}"


def _rows() -> list[Operation]:
    return [
        Operation("GET", "/actions", extras.actions),
        Operation("GET", "/actions/{id}", extras.shows("action", "actions")),
        Operation("GET", "/locations", extras.static("locations", catalog.LOCATIONS)),
        Operation("GET", "/server_types", extras.static("server_types", catalog.SERVER_TYPES)),
        Operation(
            "GET",
            "/load_balancer_types",
            extras.static("load_balancer_types", catalog.BALANCER_TYPES),
        ),
        Operation("GET", "/images", extras.images),
        Operation("GET", "/servers", servers.index),
        Operation("POST", "/servers", servers.create),
        Operation("GET", "/servers/{id}", servers.show),
        Operation("DELETE", "/servers/{id}", servers.delete),
        Operation("POST", "/servers/{id}/actions/poweron", servers.power_on),
        Operation("POST", "/servers/{id}/actions/poweroff", servers.power_off),
        Operation("POST", "/servers/{id}/actions/attach_to_network", servers.attach),
        Operation("GET", "/networks", networks.index),
        Operation("POST", "/networks", networks.create),
        Operation("GET", "/networks/{id}", networks.show),
        Operation("POST", "/networks/{id}/actions/add_route", networks.add_route),
        Operation("POST", "/networks/{id}/actions/delete_route", networks.delete_route),
        Operation("GET", "/load_balancers", balancers.index),
        Operation("POST", "/load_balancers", balancers.create),
        Operation("GET", "/load_balancers/{id}", balancers.show),
        Operation("PUT", "/load_balancers/{id}", balancers.change),
        Operation("DELETE", "/load_balancers/{id}", balancers.delete),
        *(
            Operation(
                "POST", f"/load_balancers/{{id}}/actions/{word}", balancers.acts(word, change)
            )
            for word, change in _BALANCER_ACTIONS.items()
        ),
        *_kind("ssh_key", "ssh_keys", extras.create_ssh_key),
        *_kind("placement_group", "placement_groups", extras.create_placement_group),
        *_kind("volume", "volumes", extras.create_volume),
        *_kind("firewall", "firewalls", extras.create_firewall),
        *_kind("certificate", "certificates", extras.create_certificate),
    ]


_BALANCER_ACTIONS: dict[str, balancers.Change] = {
    "add_service": balancers.add_service,
    "update_service": balancers.update_service,
    "delete_service": balancers.delete_service,
    "add_target": balancers.add_target,
    "remove_target": balancers.remove_target,
    "attach_to_network": balancers.attach,
    "detach_from_network": balancers.detach,
    "change_algorithm": balancers.change_algorithm,
    "change_type": balancers.change_type,
    "change_dns_ptr": balancers.change_dns_ptr,
    "change_protection": balancers.change_protection,
    "disable_public_interface": balancers.disable_public,
    "enable_public_interface": balancers.enable_public,
}


def _kind(kind: str, table: str, create: Handler) -> list[Operation]:
    return [
        Operation("GET", f"/{table}", extras.lists(table)),
        Operation("POST", f"/{table}", create),
        Operation("GET", f"/{table}/{{id}}", extras.shows(kind, table)),
        Operation("DELETE", f"/{table}/{{id}}", extras.deletes(kind, table)),
    ]


OPERATIONS = _rows()
"""All of them."""
