"""What a MachineClass says of a server: its fields, and what may be wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ccm import cloud
from ccm.base.parsing import parse_digits
from ccm.cloud import machines
from ccm.cloud.helpers import is_label_value
from ccm.model.selectors import BadSelectorError, parse_labels

from .marks import CLUSTER

MARKS = CLUSTER.partition("/")[0] + "/"

SMALLEST_VOLUME, LARGEST_VOLUME = 10, 10240
"""GB, as the API has them."""

_NAMES = {"assign_public_ipv4": "assignPublicIPv4", "assign_public_ipv6": "assignPublicIPv6"}


def _name(field: str) -> str:
    first, *more = field.split("_")
    return _NAMES.get(field) or first + "".join(map(str.capitalize, more))


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename=_name):
    """The `providerSpec` of a MachineClass; null is the same as nothing.

    `sshKeys`, `networks` and `firewalls` are names or IDs. Without `sshKeys` the server gets a key
    that nobody has, or else a password would be mailed. `placementGroupPrefix` spreads the servers
    of a pool over groups of that name that are made for it. `volumes` are sizes in GB of volumes
    that are made with the server and go with it. Of `datacenter` only the location counts.
    """

    server_type: str
    image: str = "ubuntu-24.04"
    location: str = ""
    datacenter: str = ""
    placement_group_prefix: str = ""
    ssh_keys: tuple[str | int, ...] = ()
    networks: tuple[str | int, ...] = ()
    firewalls: tuple[str | int, ...] = ()
    volumes: tuple[int, ...] = ()
    labels: dict[str, str] = {}
    assign_public_ipv4: bool = True
    assign_public_ipv6: bool = True

    @property
    def place(self) -> str:
        """The location; empty = the cloud chooses."""
        return self.location or self.datacenter.partition("-")[0]


def read(given: Mapping[str, Any]) -> Spec:
    """A spec that holds.

    Raises:
        InvalidArgument: it does not; the message names every fault.
    """
    if problems := _problems(given):
        raise cloud.InvalidArgument("; ".join(map(str, problems)))
    return msgspec.convert(machines.without_nulls(given), Spec)


def problems(given: Mapping[str, Any], credentials: Mapping[str, bytes]) -> Sequence[cloud.Problem]:
    """Everything that is wrong with a spec and its credentials."""
    found = _problems(given)
    try:
        token(credentials)
    except cloud.InvalidArgument as error:
        found.append(cloud.Problem(field="secretRef", message=str(error)))
    return found


def token(credentials: Mapping[str, bytes]) -> str:
    """The API token.

    Raises:
        InvalidArgument: there is none, or none for a header; its value is not told.
    """
    found = cloud.token_of(credentials, "token")
    if not found:
        raise cloud.InvalidArgument("the credentials lack token, an API token of the project")
    return found


def user_data(content: bytes) -> str:
    """User data as the API takes it. Raises InvalidArgument."""
    try:
        return content.decode()
    except ValueError:
        raise cloud.InvalidArgument("user data must be text in UTF-8") from None


def _problems(given: Mapping[str, Any]) -> list[cloud.Problem]:
    values, found = machines.converted(given, Spec)
    for name, value in values.items():
        found += _wrong(name, value)
    if given.get("serverType") is None:
        found.append(cloud.Problem(field="serverType", message="is missing; such as cx23"))
    return sorted([*found, *_contradictions(values)], key=lambda one: one.field)


def _contradictions(values: Mapping[str, Any]) -> list[cloud.Problem]:
    found = []
    if values.get("location") and values.get("datacenter"):
        text = "is given beside location; leave it out"
        found.append(cloud.Problem(field="datacenter", message=text))
    if values.get("volumes") and not (values.get("location") or values.get("datacenter")):
        text = "is missing; volumes have to be made where the server will be"
        found.append(cloud.Problem(field="location", message=text))
    ways = ("assignPublicIPv4", "assignPublicIPv6")
    if not values.get("networks") and not any(values.get(one, True) for one in ways):
        text = f"is missing; without {' and '.join(ways)} a server needs one"
        found.append(cloud.Problem(field="networks", message=text))
    return found


def _wrong(name: str, value: Any) -> list[cloud.Problem]:
    """What is wrong with a value of the right type."""
    match name:
        case "labels":
            said = f"must be labels, with no key below {MARKS}, which are the cluster's marks"
            bad = not all(_is_label(*one) for one in value.items())
        case "volumes":
            said = f"each must be a size from {SMALLEST_VOLUME} to {LARGEST_VOLUME} (GB)"
            bad = not all(SMALLEST_VOLUME <= one <= LARGEST_VOLUME for one in value)
        case "datacenter":
            said = "must be a name such as fsn1-dc14; better use location"
            bad = parse_digits(value) is not None or (value != "" and not value.partition("-")[0])
        case "sshKeys" | "networks" | "firewalls":
            said, bad = "each must be a name or an ID", not all(map(_is_name_or_id, value))
        case "serverType":
            said, bad = "must not be empty", not value
        case _:
            return []
    return [cloud.Problem(field=name, message=f"{value!r}: {said}")] if bad else []


def _is_name_or_id(word: str | int) -> bool:
    """Whether a word names a thing; what is all digits is an ID, and has to be one."""
    if isinstance(word, int) or word.isdigit():
        return bool(parse_digits(str(word)))
    return bool(word)


def _is_label(key: str, value: str) -> bool:
    try:
        parse_labels(f"{key}={value}")
    except BadSelectorError:
        return False
    return is_label_value(value) and not key.startswith(MARKS)
