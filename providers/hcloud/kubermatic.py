"""Machines of Kubermatic's API in the Hetzner Cloud.

Spec         `cloudProviderSpec`, see `Spec`
Credentials  `token` of the spec, or else the environment variable `HZ_TOKEN`

Servers carry the label `machine-uid`, by which Kubermatic's machine-controller finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from ccm import cloud
from ccm.base.parsing import parse_digits
from ccm.cloud.configvar import ConfigVarBool, ConfigVarString, Resolver
from ccm.cloud.kubermatic import (
    MACHINE_UID,
    KubermaticMarks,
    OperatingSystem,
    OSNotSupported,
    ProviderConfig,
    decode_spec,
)

from . import client, names
from .machines import HcloudMachines, list_by_identity, to_field

MARKS = KubermaticMarks(
    cluster=names.CLUSTER,
    namespace=names.NAMESPACE,
    pool=names.POOL,
    name=names.NAME,
    uid=names.UID,
)

TOKEN_VARIABLE = "HZ_TOKEN"  # noqa: S105 - a name

IMAGES: Mapping[str, str] = {
    OperatingSystem.UBUNTU: "ubuntu-24.04",
    OperatingSystem.ROCKY_LINUX: "rocky-9",
}
"""Operating system -> image for a spec without `image`. The API has no images of Kubermatic's
other operating systems."""


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename=to_field):
    """`cloudProviderSpec` of a machine. Each value may be in a Secret or ConfigMap, except labels.

    `networks` and `firewalls` are names or IDs. `datacenter` is deprecated: only its location is
    used. Without `image`, the operating system selects the image.
    """

    server_type: ConfigVarString = ConfigVarString()
    token: ConfigVarString = ConfigVarString()
    image: ConfigVarString = ConfigVarString()
    location: ConfigVarString = ConfigVarString()
    datacenter: ConfigVarString = ConfigVarString()
    placement_group_prefix: ConfigVarString = ConfigVarString()
    networks: tuple[ConfigVarString, ...] = ()
    firewalls: tuple[ConfigVarString, ...] = ()
    labels: dict[str, str] = {}
    assign_public_ipv4: ConfigVarBool = ConfigVarBool()
    assign_public_ipv6: ConfigVarBool = ConfigVarBool()


class KubermaticMachines(HcloudMachines):
    """Driver that implements `KubermaticSpecs`."""

    marks = MARKS
    # None: a token shows the servers of its project in all locations.
    location_fields: frozenset[str] = frozenset()

    def add_kubermatic_defaults(self, config: ProviderConfig) -> ProviderConfig:
        """Replace `datacenter` by its location, unless the value is in a Secret or ConfigMap.

        Raises:
            InvalidArgument: the spec is invalid or has both `datacenter` and `location`, or
                `datacenter` is not a name such as fsn1-dc14.
        """
        spec, given = decode_spec(config, Spec), dict(config.cloud_provider_spec)
        if not spec.datacenter.value:
            return config
        if spec.location.value:
            raise cloud.InvalidArgument("location and datacenter are both set; remove datacenter")
        given["location"] = _location_of(spec.datacenter.value)
        given.pop("datacenter")
        return msgspec.structs.replace(config, cloud_provider_spec=given)

    def kubermatic_spec(
        self, config: ProviderConfig, resolver: Resolver, *, strict: bool
    ) -> Mapping[str, Any]:
        """Return the provider spec of `HcloudMachines`.

        Raises:
            InvalidArgument: the spec is invalid, or a referenced value does not exist.
            OSNotSupported: there is no image for the operating system.
        """
        spec = decode_spec(config, Spec, strict=strict)
        texts = resolver.get_texts(spec, without=("token",))
        return {
            **texts,
            "image": texts.get("image") or (_image_of(config.operating_system) if strict else ""),
            "networks": [resolver.get_string_value(network) for network in spec.networks],
            "firewalls": [resolver.get_string_value(firewall) for firewall in spec.firewalls],
            "labels": spec.labels,
            "assignPublicIPv4": resolver.get_bool_value(spec.assign_public_ipv4),
            "assignPublicIPv6": resolver.get_bool_value(spec.assign_public_ipv6),
        }

    def kubermatic_credentials(
        self, spec: Mapping[str, Any], resolver: Resolver
    ) -> cloud.Credentials:
        """Return the API token. Raises `InvalidArgument` if a referenced value does not exist."""
        return cloud.Credentials({"token": resolver.get_credential(spec, "token", TOKEN_VARIABLE)})

    async def migrate_uid(self, req: cloud.MachineRequest, former: str) -> None:
        """Set the UID in the labels of the server and its key; keep all other labels.

        Sends two requests to find them, and one to change each.
        """
        owner = replace(req.identity, uid=former)
        tables: tuple[tuple[str, str, type[client.Labelled]], ...] = (
            ("ssh_keys", "ssh_key", client.Labelled),
            ("servers", "server", client.Server),
        )
        async with self.spi.of(req.credentials, pool=owner.pool) as api:
            for table, key, kind in tables:
                for thing in await list_by_identity(api, table, kind, owner, self.marks):
                    changed = {MACHINE_UID, names.UID} & thing.labels.keys()
                    labels = thing.labels | dict.fromkeys(changed, req.identity.uid)
                    await api.set_name_and_labels(table, key, thing, name=thing.name, labels=labels)


def _location_of(datacenter: str) -> str:
    location = datacenter.partition("-")[0]
    if parse_digits(datacenter) is not None or not location:
        raise cloud.InvalidArgument(
            f"datacenter is {datacenter!r}; it must be a name such as fsn1-dc14. Prefer location"
        )
    return location


def _image_of(system: str) -> str:
    if system not in IMAGES:
        raise OSNotSupported(
            f"operatingSystem is {system!r}, for which there is no image; set image, or "
            f"operatingSystem to one of {', '.join(IMAGES)}"
        )
    return IMAGES[system]
