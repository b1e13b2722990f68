"""Handlers for all resources other than servers, networks and load balancers."""

from __future__ import annotations

import base64
from hashlib import md5
from typing import Any

from . import catalog, state
from .state import Answer, ApiError, Call, Cloud, Handler, Resource


def show_handler(kind: str, table: str) -> Handler:
    """Return a handler that returns one resource of a kind."""

    def show(cloud: Cloud, call: Call) -> Answer:
        _set_users(cloud, table)
        return 200, {kind: state.get(getattr(cloud, table), call.id, kind)}

    return show


def list_handler(table: str) -> Handler:
    """Return a handler that lists all resources of a kind."""

    def index(cloud: Cloud, call: Call) -> Answer:
        _set_users(cloud, table)
        return state.listing(cloud, call, table, getattr(cloud, table).values())

    return index


def static_list_handler(table: str, things: list[Resource]) -> Handler:
    """Return a handler that lists predefined resources."""

    def index(cloud: Cloud, call: Call) -> Answer:
        wanted = call.parameter("architecture")
        matching = [thing for thing in things if not wanted or thing.get("architecture") == wanted]
        if table == "images" and call.parameter("include_deprecated") != "true":
            matching = [image for image in matching if image["deprecated"] is None]
        return state.listing(cloud, call, table, matching)

    return index


def actions(cloud: Cloud, call: Call) -> Answer:
    """List the actions with the IDs in the query."""
    wanted = [int(action_id) for action_id in call.query.get("id", [])]
    matching = [
        dict(cloud.actions[action_id]) for action_id in wanted if action_id in cloud.actions
    ]
    return state.listing(cloud, call, "actions", matching)


def create_resource(cloud: Cloud, table: str, call: Call, **fields: Any) -> Resource:
    """Create a resource of a kind; its name must be unique."""
    things: dict[int, Resource] = getattr(cloud, table)
    name = state.text(call.body, "name")
    state.unique(things, name, table.rstrip("s").replace("_", " "))
    thing: Resource = {
        "id": cloud.new_id(),
        "name": name,
        "labels": state.labels(call.body),
        "created": cloud.now(),
        **fields,
    }
    things[thing["id"]] = thing
    return thing


def create_ssh_key(cloud: Cloud, call: Call) -> Answer:
    """Store a key; name and fingerprint must be unique."""
    public = state.text(call.body, "public_key")
    try:
        fingerprint = md5(base64.b64decode(public.split()[1]), usedforsecurity=False).hexdigest()
    except (IndexError, ValueError) as error:
        raise state.invalid("public_key", "is not an SSH key") from error
    shown = ":".join(fingerprint[at : at + 2] for at in range(0, 32, 2))
    if any(key["fingerprint"] == shown for key in cloud.ssh_keys.values()):
        raise ApiError("uniqueness_error", "SSH key with the same fingerprint already exists")
    return 201, {
        "ssh_key": create_resource(cloud, "ssh_keys", call, fingerprint=shown, public_key=public)
    }


def create_placement_group(cloud: Cloud, call: Call) -> Answer:
    kind = state.text(call.body, "type")
    group = create_resource(cloud, "placement_groups", call, type=kind, servers=[])
    return 201, {"placement_group": group, "action": None}


def create_volume(cloud: Cloud, call: Call) -> Answer:
    location = catalog.find(catalog.LOCATIONS, str(call.body.get("location")))
    size: Any = call.body.get("size")
    if location is None:
        raise state.invalid("location", "location not found")
    if not isinstance(size, int) or not 10 <= size <= 10240:
        raise state.invalid("size", "must be from 10 to 10240")
    volume = create_resource(
        cloud,
        "volumes",
        call,
        size=size,
        server=None,
        status="creating",
        location=location,
        format=call.body.get("format"),
        protection={"delete": False},
    )
    volume["linux_device"] = f"/dev/disk/by-id/scsi-0HC_Volume_{volume['id']}"
    about = [("volume", volume["id"])]
    action = cloud.act("create_volume", about, lambda: volume.update(status="available"))
    return 201, {"volume": volume, "action": action, "next_actions": []}


def create_firewall(cloud: Cloud, call: Call) -> Answer:
    firewall = create_resource(cloud, "firewalls", call, rules=[], applied_to=[])
    return 201, {"firewall": firewall, "actions": []}


def create_certificate(cloud: Cloud, call: Call) -> Answer:
    """Create a certificate; a managed one is issued when its action ends."""
    managed = call.body.get("type") == "managed"
    if managed and not call.body.get("domain_names"):
        raise state.invalid("domain_names", "must not be empty")
    pending = {"issuance": "pending", "renewal": "unavailable", "error": None}
    certificate = create_resource(
        cloud,
        "certificates",
        call,
        type=call.body.get("type", "uploaded"),
        certificate=call.body.get("certificate"),
        not_valid_before=None if managed else cloud.now(),
        not_valid_after=None if managed else cloud.time_in(90 * 86400),
        domain_names=call.body.get("domain_names") or ["example.com"],
        fingerprint=None,
        status=pending if managed else None,
        used_by=[],
    )
    if not managed:
        return 201, {"certificate": certificate}
    issued = {"issuance": "completed", "renewal": "scheduled", "error": None}
    about = [("certificate", certificate["id"])]
    action = cloud.act("create_certificate", about, lambda: certificate.update(status=issued))
    return 201, {"certificate": certificate, "action": action}


def change_handler(kind: str, table: str) -> Handler:
    """Return a handler that changes name or labels; new labels replace all existing labels."""

    def change(cloud: Cloud, call: Call) -> Answer:
        things: dict[int, Resource] = getattr(cloud, table)
        thing = state.get(things, call.id, kind)
        if name := state.text(call.body, "name", required=False):
            state.unique(things, name, kind.replace("_", " "), but=call.id)
            thing["name"] = name
        if "labels" in call.body:
            thing["labels"] = state.labels(call.body)
        return 200, {kind: thing}

    return change


def delete_handler(kind: str, table: str) -> Handler:
    """Return a handler that deletes a resource of a kind unless it is in use."""

    def delete(cloud: Cloud, call: Call) -> Answer:
        things: dict[int, Resource] = getattr(cloud, table)
        thing = state.get(things, call.id, kind)
        if thing.get("server") is not None:
            raise ApiError("service_error", "volume is still attached to a server")
        if thing.get("servers") or (kind == "certificate" and _users(cloud, call.id)):
            raise ApiError("resource_in_use", f"{kind} is in use", status=422)
        cloud.check_free(kind, call.id)
        del things[call.id]
        return 204, None

    return delete


def _set_users(cloud: Cloud, table: str) -> None:
    """Set `used_by` of all certificates."""
    for number, certificate in cloud.certificates.items() if table == "certificates" else ():
        users = _users(cloud, number)
        certificate["used_by"] = [{"id": user, "type": "load_balancer"} for user in users]


def _users(cloud: Cloud, number: int) -> list[int]:
    """Return the IDs of the load balancers that use a certificate."""
    return [
        balancer["id"]
        for balancer in cloud.load_balancers.values()
        if any(
            number in ((service.get("http") or {}).get("certificates") or [])
            for service in balancer["services"]
        )
    ]
