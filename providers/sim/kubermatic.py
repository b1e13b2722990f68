"""Machines of Kubermatic's API in the simulated cloud.

Spec         `cloudProviderSpec`, see `Spec`
Credentials  `token` of the spec, or else the environment variable `SIM_TOKEN`

The cloud has no images, so every operating system counts as supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from ccm import cloud
from ccm.cloud.configvar import ConfigVarNumber, ConfigVarString, Resolver
from ccm.cloud.kubermatic import DeclaredSpec, ProviderConfig, decode_spec

from .machines import MARKS, SimMachines, find_by_identity, find_volumes

TOKEN_VARIABLE = "SIM_TOKEN"  # noqa: S105 - a name


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`cloudProviderSpec` of a machine. Each value may be in a Secret or ConfigMap, except labels.

    Except for `token`, the fields are those of `machines.Spec`.
    """

    token: ConfigVarString = ConfigVarString()
    machine_type: ConfigVarString = ConfigVarString()
    zone: ConfigVarString = ConfigVarString()
    region: ConfigVarString = ConfigVarString()
    labels: dict[str, str] = {}
    allowed_addresses: tuple[ConfigVarString, ...] = ()
    data_volumes: tuple[ConfigVarNumber, ...] = ()


class KubermaticMachines(DeclaredSpec, SimMachines):
    """Driver that implements `KubermaticSpecs`."""

    declared = Spec
    # None: VMs are found in all zones and regions.
    location_fields: frozenset[str] = frozenset()

    def kubermatic_spec(
        self, config: ProviderConfig, resolver: Resolver, *, strict: bool
    ) -> Mapping[str, Any]:
        """Return the provider spec of `SimMachines`.

        Raises:
            InvalidArgument: the spec is invalid, or a referenced value does not exist.
        """
        spec = decode_spec(config, Spec, strict=strict)
        return {
            **resolver.get_texts(spec, without=("token",)),
            "labels": spec.labels,
            "allowedAddresses": [resolver.get_string_value(one) for one in spec.allowed_addresses],
            "dataVolumes": [resolver.get_number_value(one) for one in spec.data_volumes],
        }

    def kubermatic_credentials(
        self, spec: Mapping[str, Any], resolver: Resolver
    ) -> cloud.Credentials:
        """Return the token. Raises `InvalidArgument` if a referenced value does not exist."""
        return cloud.Credentials({"token": resolver.get_credential(spec, "token", TOKEN_VARIABLE)})

    async def migrate_uid(self, req: cloud.MachineRequest, former: str) -> None:
        """Set the UID in the labels of the VM; keep all other labels.

        Raises:
            FailedPrecondition: the VM has data volumes, whose labels this cloud cannot change.
        """
        owner = replace(req.identity, uid=former)
        async with self.spi.of(req.credentials, pool=owner.pool) as api:
            servers = await find_by_identity(api, owner)
            if servers and await find_volumes(api, owner):
                raise cloud.FailedPrecondition(
                    f"VM {servers[0].id} has data volumes, and this cloud cannot change their "
                    "labels; create the machine anew"
                )
            for server in servers:
                await api.set_labels(server.id, {MARKS.uid: req.identity.uid})
