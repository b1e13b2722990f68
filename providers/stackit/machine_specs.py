"""What a MachineClass says of a server: its fields, and what may be wrong with them. Pure.

The rules are those of STACKIT's own driver, so that classes that were made for it go on working;
fields that nobody knows are skipped, as there. All that is wrong is told at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ccm import cloud
from ccm.base.parsing import UNDECODABLE
from ccm.cloud import machines
from ccm.cloud.helpers import is_label_value

from .config import REGION, UUID

PROJECT_ID = "project-id"
SERVICE_ACCOUNT = "serviceaccount.json"
"""Keys of the Secret; the project is a UUID, the other one a service account's key, JSON."""

CREDENTIALS = "secretRef"
"""The field of a class that its problems with credentials are about. Never `secret`: a text after
`secret:` is taken for one, and redacted."""

_MACHINE_TYPE = re.compile(r"[a-z]+\d+[a-z]*\.\d+[a-z]*(\.[a-z]+\d+)*", re.ASCII)
_ZONE = re.compile(r"[a-z0-9]+-(?:\d+|m)", re.ASCII)
_LABEL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_./]*[a-zA-Z0-9])?", re.ASCII)
_KEYPAIR = re.compile(r"[A-Za-z0-9@._-]{0,127}", re.ASCII)
_MAIL = re.compile(r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}", re.ASCII)
_HOST = re.compile(r"(?=.{1,63}$)[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?", re.ASCII)

SOURCES = ("image", "snapshot", "volume")
"""What a boot volume may be made of. The API documents image and volume."""


class Networking(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Exactly one of the two; cards fit one machine only."""

    network_id: str | None = None
    nic_ids: tuple[str, ...] | None = None


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a boot volume is made of."""

    type: str = ""
    id: str = ""


class BootVolume(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The volume that a server boots from; `size` is GB."""

    size: int = 0
    performance_class: str = ""
    delete_on_termination: bool = True
    source: Source | None = None


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """The vendor's agent in the server."""

    provisioned: bool | None = None


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `providerSpec` of a MachineClass; null is the same as nothing.

    `userData` goes before that of the Secret. `bootVolume` goes with its server unless it says
    otherwise, and so it does where there is nothing about it.
    """

    region: str
    machine_type: str
    networking: Networking
    image_id: str = ""
    labels: dict[str, str] = {}
    allowed_addresses: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    user_data: str = ""
    boot_volume: BootVolume | None = None
    volumes: tuple[str, ...] = ()
    keypair_name: str = ""
    availability_zone: str = ""
    affinity_group: str = ""
    service_account_mails: tuple[str, ...] = ()
    agent: Agent | None = None
    metadata: dict[str, Any] = {}


def read(given: Mapping[str, Any]) -> Spec:
    """A spec that holds.

    Raises:
        InvalidArgument: it does not; the message names every fault.
    """
    if found := list(_problems(given)):
        raise cloud.InvalidArgument("; ".join(map(str, found)))
    return msgspec.convert(machines.without_nulls(given), Spec)


def problems(given: Mapping[str, Any], credentials: Mapping[str, bytes]) -> Sequence[cloud.Problem]:
    """Everything that is wrong with credentials and a spec, in that order."""
    return [*_secret(credentials), *_problems(given)]


def region_of(given: Mapping[str, Any]) -> str:
    """The region that a spec names, whatever else is wrong with it; empty without one."""
    found = given.get("region")
    return found if isinstance(found, str) and REGION.fullmatch(found) else ""


def project(credentials: Mapping[str, bytes]) -> str:
    """The project of a Secret. Raises InvalidArgument."""
    if found := [one for one in _secret(credentials) if PROJECT_ID in one.message]:
        raise cloud.InvalidArgument(found[0].message)
    return _text(credentials, PROJECT_ID).lower()


def name_fault(who: cloud.Identity) -> str:
    """What is wrong with the names of a machine; empty: nothing."""
    if not _HOST.fullmatch(who.name):
        return f"the name of the machine, {who.name!r}, cannot be that of a server: 63 characters"
    for word, text in (("cluster", who.cluster), ("class", who.pool)):
        if not is_label_value(text):
            return (
                f"the {word} of the machine, {text!r}, cannot be a label of a server; it may have "
                "at most 63 characters"
            )
    return ""


def _text(credentials: Mapping[str, bytes], key: str) -> str:
    # A Secret is often made of a file, and a file ends with a line.
    return credentials.get(key, b"").decode(errors="replace").strip()


def _secret(credentials: Mapping[str, bytes]) -> Iterator[cloud.Problem]:
    said = _text(credentials, PROJECT_ID)
    if not said:
        yield _problem(CREDENTIALS, f"{PROJECT_ID} is missing; give the ID of the project")
    elif not UUID.fullmatch(said):
        yield _problem(CREDENTIALS, f"{PROJECT_ID} is {said!r}; it must be a UUID")
    key = _text(credentials, SERVICE_ACCOUNT)
    if not key:
        yield _problem(CREDENTIALS, f"{SERVICE_ACCOUNT} is missing; give a service account's key")
        return
    try:
        msgspec.json.decode(key)
    except UNDECODABLE:
        yield _problem(CREDENTIALS, f"{SERVICE_ACCOUNT} must be JSON; its value is not told")


def _problem(field: str, message: str) -> cloud.Problem:
    return cloud.Problem(field=field, message=message)


def _problems(given: Mapping[str, Any]) -> Iterator[cloud.Problem]:
    values, unread = machines.converted(given, Spec, knows_all=False)
    broken = {one.field for one in unread}
    for field, check in _CHECKS.items():
        yield from (one for one in unread if one.field == field)
        if field not in broken:
            for text in check(values.get(field), values):
                yield _problem(field, text)
    yield from (one for one in unread if one.field not in _CHECKS)


Check = Callable[[Any, Mapping[str, Any]], Iterator[str]]


def _must(value: Any, pattern: re.Pattern[str], what: str) -> Iterator[str]:
    if not pattern.fullmatch(value or ""):
        yield f"{value!r} must be {what}" if value else f"is missing; it must be {what}"


def _may(value: Any, pattern: re.Pattern[str], what: str) -> Iterator[str]:
    if value and not pattern.fullmatch(value):
        yield f"{value!r} must be {what}"


def _each(pattern: re.Pattern[str], what: str) -> Check:
    def check(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
        for at, one in enumerate(value or ()):
            if not pattern.fullmatch(one):
                yield f"[{at}] {one!r} must be {what}"

    return check


def _image(value: Any, values: Mapping[str, Any]) -> Iterator[str]:
    volume: BootVolume | None = values.get("bootVolume")
    if value:
        yield from _may(value, UUID, "a UUID")
    elif volume is None or volume.source is None:
        yield "is missing; give the ID of an image, or bootVolume.source"


def _labels(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    for key, text in (value or {}).items():
        if len(key) > 63 or not _LABEL.fullmatch(key):
            yield f"key {key!r} must be 63 letters, digits, -, _, . or /, at its ends no sign"
        if not is_label_value(text):
            yield f"value {text!r} must be 63 letters, digits, -, _ or ., at its ends no sign"


def _networking(value: Networking | None, _: Mapping[str, Any]) -> Iterator[str]:
    if value is None or (value.network_id is None) == (not value.nic_ids):
        yield "needs exactly one of networkId and nicIds"
        return
    for one in (value.network_id,) if value.network_id is not None else value.nic_ids or ():
        yield from _must(one, UUID, "a UUID")


def _boot_volume(value: BootVolume | None, _: Mapping[str, Any]) -> Iterator[str]:
    if value is None:
        return
    if value.size < 0:
        yield f"size is {value.size}; it must be GB, 0 or above"
    if value.source is not None:
        if value.source.type not in SOURCES:
            yield f"source.type is {value.source.type!r}; it must be one of {', '.join(SOURCES)}"
        for text in _must(value.source.id, UUID, "a UUID"):
            yield f"source.id {text}"


def _groups(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    if "" in (value or ()):
        yield "must hold no empty text"


def _allowed(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    for at, one in enumerate(value or ()):
        if "/" not in one or cloud.parse_cidr(one) is None:
            yield f"[{at}] {one!r} must be a range such as 10.0.0.0/24"


def _mails(value: Any, values: Mapping[str, Any]) -> Iterator[str]:
    if len(value or ()) > 1:
        yield f"holds {len(value)}; there may be one"
    yield from _each(_MAIL, "a mail address")(value, values)


_CHECKS: Mapping[str, Check] = {
    "region": lambda value, _: _must(value, REGION, "a region such as eu01"),
    "availabilityZone": lambda value, _: _may(value, _ZONE, "a zone such as eu01-1 or eu01-m"),
    "machineType": lambda value, _: _must(value, _MACHINE_TYPE, "a type such as c2i.2"),
    "imageId": _image,
    "labels": _labels,
    "networking": _networking,
    "securityGroups": _groups,
    "bootVolume": _boot_volume,
    "volumes": _each(UUID, "a UUID"),
    "keypairName": lambda value, _: _may(value, _KEYPAIR, "127 letters, digits, @, ., _ or -"),
    "allowedAddresses": _allowed,
    "affinityGroup": lambda value, _: _may(value, UUID, "a UUID"),
    "serviceAccountMails": _mails,
}
"""Field -> what is wrong with it, in the order in which it is told."""
