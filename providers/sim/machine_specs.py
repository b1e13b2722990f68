"""What a MachineClass says of a simulated VM: its fields, and what may be wrong with them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ccm import cloud
from ccm.cloud import machines

from . import client


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The `providerSpec` of a MachineClass; null is the same as nothing.

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
    """Return the bearer token.

    Raises:
        InvalidArgument: there is none, or no header can carry it; its value is not told.
    """
    if not (found := cloud.token_of(credentials, "token")):
        raise cloud.InvalidArgument("the credentials lack token, as in the cloud config")
    return found


def _problems(given: Mapping[str, Any]) -> list[cloud.Problem]:
    values, found = machines.converted(given, Spec)
    for name, value in values.items():
        found += _wrong(name, value)
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
