"""Machines of Kubermatic's API in STACKIT.

Spec         `cloudProviderSpec`, see `Spec`
Credentials  `projectId` and `serviceAccountKey` of the spec, or else the environment variables
             `STACKIT_PROJECT_ID` and `STACKIT_SERVICE_ACCOUNT_KEY`

STACKIT's images have no fixed names, so `imageId` is required. Machine types and zones are those of
the region.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from ccm import cloud
from ccm.cloud.configvar import ConfigVarNumber, ConfigVarString, Resolver
from ccm.cloud.kubermatic import DeclaredSpec, OSNotSupported, ProviderConfig, decode_spec

from .machines import (
    MARKS,
    PROJECT_ID,
    SERVICE_ACCOUNT,
    StackitMachines,
    find_servers,
)

PROJECT_VARIABLE = "STACKIT_PROJECT_ID"
KEY_VARIABLE = "STACKIT_SERVICE_ACCOUNT_KEY"


class BootVolume(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Boot volume of a server; `size` is in GB."""

    size: ConfigVarNumber = ConfigVarNumber()
    performance_class: ConfigVarString = ConfigVarString()


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`cloudProviderSpec` of a machine. Each value may be in a Secret or ConfigMap, except labels.

    Except for the credentials, the fields are those of `machines.Spec`, where `networkId` is
    `networking.networkId`.
    """

    project_id: ConfigVarString = ConfigVarString()
    service_account_key: ConfigVarString = ConfigVarString()
    region: ConfigVarString = ConfigVarString()
    machine_type: ConfigVarString = ConfigVarString()
    image_id: ConfigVarString = ConfigVarString()
    network_id: ConfigVarString = ConfigVarString()
    availability_zone: ConfigVarString = ConfigVarString()
    keypair_name: ConfigVarString = ConfigVarString()
    affinity_group: ConfigVarString = ConfigVarString()
    security_groups: tuple[ConfigVarString, ...] = ()
    allowed_addresses: tuple[ConfigVarString, ...] = ()
    boot_volume: BootVolume | None = None
    labels: dict[str, str] = {}


class KubermaticMachines(DeclaredSpec, StackitMachines):
    """Driver that implements `KubermaticSpecs`."""

    declared = Spec
    location_fields = frozenset({"region"})  # the project is one of the credentials

    def kubermatic_spec(
        self, config: ProviderConfig, resolver: Resolver, *, strict: bool
    ) -> Mapping[str, Any]:
        """Return the provider spec of `StackitMachines`.

        Raises:
            InvalidArgument: the spec is invalid, or a referenced value does not exist.
            OSNotSupported: the spec names no image.
        """
        spec = decode_spec(config, Spec, strict=strict)
        texts = resolver.get_texts(spec, without=("projectId", "serviceAccountKey"))
        if strict and "imageId" not in texts:
            raise OSNotSupported(
                f"there is no image for operatingSystem {config.operating_system!r}; set imageId"
            )
        network = texts.pop("networkId", None)
        groups = [resolver.get_string_value(group) for group in spec.security_groups]
        addresses = [resolver.get_string_value(one) for one in spec.allowed_addresses]
        native: dict[str, Any] = {
            **texts,
            "networking": {"networkId": network},
            "securityGroups": groups,
            "allowedAddresses": addresses,
            "labels": spec.labels,
        }
        if (volume := spec.boot_volume) is not None:
            size = resolver.get_number_value(volume.size)
            native["bootVolume"] = resolver.get_texts(volume) | ({"size": size} if size else {})
        return native

    def kubermatic_credentials(
        self, spec: Mapping[str, Any], resolver: Resolver
    ) -> cloud.Credentials:
        """Return project and key. Raises `InvalidArgument` if a referenced value does not exist."""
        return cloud.Credentials(
            {
                PROJECT_ID: resolver.get_credential(spec, "projectId", PROJECT_VARIABLE),
                SERVICE_ACCOUNT: resolver.get_credential(spec, "serviceAccountKey", KEY_VARIABLE),
            }
        )

    async def migrate_uid(self, req: cloud.MachineRequest, former: str) -> None:
        """Set the UID in the labels of the server; keep all other labels."""
        owner = replace(req, identity=replace(req.identity, uid=former), provider_id="")
        async with self.client(req.credentials, req.identity.pool) as api:
            for place, server_id in await find_servers(api, owner):
                server = await api.server(place, server_id)
                labels = {**(server.labels or {}), MARKS.uid: req.identity.uid}
                await api.set_labels(place, server_id, labels)
