"""What a MachineClass says of a simulated VM: its fields, and what may be wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ccm import cloud

from . import client, config

REQUIRED = ("url", "token")
"""Keys of the credentials."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `providerSpec` of a MachineClass.

    `allowedAddresses` are ranges from which the VM may send besides its own addresses, such as
    those of its pods; they are set when the VM has started. `dataVolumes` are sizes in GiB of
    volumes that are made with it and go with it.
    """

    machine_type: str = "small"
    zone: str = "sim-1a"
    region: str = "sim-1"
    labels: dict[str, str] = {}
    allowed_addresses: tuple[str, ...] = ()
    data_volumes: tuple[int, ...] = ()


def read(given: Mapping[str, Any]) -> Spec:
    """A spec that holds.

    Raises:
        InvalidArgument: it does not; the message names every fault.
    """
    if problems := [*_problems(given)]:
        raise cloud.InvalidArgument("; ".join(map(str, problems)))
    return msgspec.convert(dict(given), Spec)


def problems(given: Mapping[str, Any], credentials: Mapping[str, bytes]) -> Sequence[cloud.Problem]:
    """Everything that is wrong with a spec and its credentials."""
    found = _problems(given)
    try:
        settings(credentials)
    except cloud.InvalidArgument as error:
        found.append(cloud.Problem(field="secretRef", message=str(error)))
    return found


def settings(credentials: Mapping[str, bytes]) -> config.Config:
    """Where the cloud of some credentials is, and what opens it.

    Raises:
        InvalidArgument: a key is missing or unreadable; its value is not told.
    """
    if missing := [key for key in REQUIRED if not credentials.get(key)]:
        raise cloud.InvalidArgument(
            f"the credentials lack {' and '.join(missing)}; expected {' and '.join(REQUIRED)}"
        )
    try:
        # A Secret is often made of a file, and a file ends with a line.
        url = config.parse_url(credentials["url"].decode().strip())
        return config.Config(url=url, token=cloud.token_of(credentials, "token"))
    except ValueError:
        raise cloud.InvalidArgument(
            "the credentials must be text, and url look like http://host:port"
        ) from None


def _problems(given: Mapping[str, Any]) -> list[cloud.Problem]:
    known = {field.encode_name: field for field in msgspec.structs.fields(Spec)}
    found = [
        cloud.Problem(field=name, message=f"no such field; there are {', '.join(known)}")
        for name in given
        if name not in known
    ]
    for name in known.keys() & given.keys():
        try:
            value = msgspec.convert(given[name], known[name].type)
        except msgspec.ValidationError as error:
            found.append(cloud.Problem(field=name, message=str(error)))
        else:
            found.extend(_wrong(name, value))
    return sorted(found, key=lambda one: one.field)


def _wrong(name: str, value: Any) -> list[cloud.Problem]:
    """What is wrong with a value of the right type."""
    match name:
        case "labels":
            said = f"keys below {client.MARKS} are the cluster's marks; take others"
            bad = any(key.startswith(client.MARKS) for key in value)
        case "allowedAddresses":
            said = "each must be a range like 10.244.0.0/16"
            bad = any(cloud.parse_cidr(one) is None for one in value)
        case "dataVolumes":
            said, bad = "each must be a number of GiB above 0", any(one < 1 for one in value)
        case _:
            said, bad = "must not be empty", not value
    return [cloud.Problem(field=name, message=f"{value!r}: {said}")] if bad else []
