"""What the calls about everything beside servers, networks and load balancers do."""

from __future__ import annotations

import base64
from hashlib import md5
from typing import Any

from . import answers, catalog, state
from .answers import Answer, Call, Handler
from .state import ApiError, Cloud, Thing


def shows(kind: str, table: str) -> Handler:
    """One of a kind."""

    def show(cloud: Cloud, call: Call) -> Answer:
        return 200, {kind: state.get(getattr(cloud, table), call.id, kind)}

    return show


def lists(table: str) -> Handler:
    """All of a kind."""

    def index(cloud: Cloud, call: Call) -> Answer:
        return answers.listing(cloud, call, table, getattr(cloud, table).values())

    return index


def static(table: str, things: list[Thing]) -> Handler:
    """All of what can be ordered."""

    def index(cloud: Cloud, call: Call) -> Answer:
        wanted = call.one("architecture")
        found = [one for one in things if not wanted or one.get("architecture") == wanted]
        return answers.listing(cloud, call, table, found)

    return index


def images(cloud: Cloud, call: Call) -> Answer:
    """All images."""
    return static("images", catalog.IMAGES)(cloud, call)


def actions(cloud: Cloud, call: Call) -> Answer:
    """Those that are named."""
    wanted = [int(each) for each in call.query.get("id", [])]
    found = [dict(cloud.actions[each]) for each in wanted if each in cloud.actions]
    return answers.listing(cloud, Call(), "actions", found)


def create_ssh_key(cloud: Cloud, call: Call) -> Answer:
    """Put a key down; neither its name nor itself may be there."""
    name, public = answers.text(call.body, "name"), answers.text(call.body, "public_key")
    state.unique(cloud.ssh_keys, name, "SSH key")
    try:
        fingerprint = md5(base64.b64decode(public.split()[1]), usedforsecurity=False).hexdigest()
    except (IndexError, ValueError) as error:
        raise state.invalid("public_key", "is no SSH key") from error
    shown = ":".join(fingerprint[at : at + 2] for at in range(0, 32, 2))
    if any(one["fingerprint"] == shown for one in cloud.ssh_keys.values()):
        raise ApiError("uniqueness_error", "SSH key with the same fingerprint already exists")
    made: Thing = {
        "id": cloud.new_id(),
        "name": name,
        "fingerprint": shown,
        "public_key": public,
        "labels": answers.labels(call.body),
        "created": cloud.now(),
    }
    cloud.ssh_keys[made["id"]] = made
    return 201, {"ssh_key": made}


def create_placement_group(cloud: Cloud, call: Call) -> Answer:
    """Make a group."""
    name = answers.text(call.body, "name")
    state.unique(cloud.placement_groups, name, "placement group")
    made: Thing = {
        "id": cloud.new_id(),
        "name": name,
        "type": answers.text(call.body, "type"),
        "servers": [],
        "labels": answers.labels(call.body),
        "created": cloud.now(),
    }
    cloud.placement_groups[made["id"]] = made
    return 201, {"placement_group": made, "action": None}


def create_volume(cloud: Cloud, call: Call) -> Answer:
    """Order a volume."""
    name = answers.text(call.body, "name")
    state.unique(cloud.volumes, name, "volume")
    location = catalog.find(catalog.LOCATIONS, str(call.body.get("location")))
    size: Any = call.body.get("size")
    if location is None:
        raise state.invalid("location", "location not found")
    if not isinstance(size, int) or not 10 <= size <= 10240:
        raise state.invalid("size", "must be from 10 to 10240")
    number = cloud.new_id()
    made: Thing = {
        "id": number,
        "name": name,
        "size": size,
        "server": None,
        "status": "creating",
        "location": location,
        "format": call.body.get("format"),
        "linux_device": f"/dev/disk/by-id/scsi-0HC_Volume_{number}",
        "protection": {"delete": False},
        "labels": answers.labels(call.body),
        "created": cloud.now(),
    }
    cloud.volumes[number] = made
    done = {"status": "available"}
    action = cloud.act("create_volume", [("volume", number)], lambda: made.update(done))
    return 201, {"volume": made, "action": action, "next_actions": []}


def create_firewall(cloud: Cloud, call: Call) -> Answer:
    """Make a firewall, as an administrator does."""
    name = answers.text(call.body, "name")
    state.unique(cloud.firewalls, name, "firewall")
    made: Thing = {
        "id": cloud.new_id(),
        "name": name,
        "labels": answers.labels(call.body),
        "rules": [],
        "applied_to": [],
        "created": cloud.now(),
    }
    cloud.firewalls[made["id"]] = made
    return 201, {"firewall": made, "actions": []}


def create_certificate(cloud: Cloud, call: Call) -> Answer:
    """Order a certificate; a managed one is issued when its action ends."""
    name, kind = answers.text(call.body, "name"), call.body.get("type", "uploaded")
    state.unique(cloud.certificates, name, "certificate")
    managed = kind == "managed"
    if managed and not call.body.get("domain_names"):
        raise state.invalid("domain_names", "must not be empty")
    made: Thing = {
        "id": cloud.new_id(),
        "name": name,
        "type": kind,
        "labels": answers.labels(call.body),
        "certificate": call.body.get("certificate"),
        "created": cloud.now(),
        "not_valid_before": None if managed else cloud.now(),
        "not_valid_after": None if managed else cloud.moment(90 * 86400),
        "domain_names": call.body.get("domain_names") or ["example.com"],
        "fingerprint": None,
        "status": {"issuance": "pending", "renewal": "unavailable", "error": None}
        if managed
        else None,
        "used_by": [],
    }
    cloud.certificates[made["id"]] = made
    if not managed:
        return 201, {"certificate": made}
    issued = {"issuance": "completed", "renewal": "scheduled", "error": None}
    action = cloud.act(
        "create_certificate", [("certificate", made["id"])], lambda: made.update(status=issued)
    )
    return 201, {"certificate": made, "action": action}


def deletes(kind: str, table: str) -> Handler:
    """Take one of a kind away, unless it is in use."""

    def delete(cloud: Cloud, call: Call) -> Answer:
        things: dict[int, Thing] = getattr(cloud, table)
        found = state.get(things, call.id, kind)
        if found.get("server") is not None:
            raise ApiError("service_error", "volume is still attached to a server")
        if found.get("servers") or _is_used(cloud, kind, call.id):
            raise ApiError("resource_in_use", f"{kind} is in use", status=422)
        cloud.check_free(kind, call.id)
        del things[call.id]
        return 204, None

    return delete


def _is_used(cloud: Cloud, kind: str, number: int) -> bool:
    return kind == "certificate" and any(
        number in ((service.get("http") or {}).get("certificates") or [])
        for one in cloud.load_balancers.values()
        for service in one["services"]
    )
