"""Machines of Kubermatic's API in OpenStack.

Spec         `cloudProviderSpec`, see `Spec`
Credentials  of the spec, or else environment variables, see `CREDENTIALS`

Servers have the metadata `machine-uid`, by which Kubermatic's machine-controller finds them. Clouds
name their images differently, so `image` is required.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from ccm import cloud
from ccm.cloud.configvar import ConfigVarBool, ConfigVarNumber, ConfigVarString, Resolver
from ccm.cloud.kubermatic import (
    MACHINE_UID,
    DeclaredSpec,
    KubermaticMarks,
    OSNotSupported,
    ProviderConfig,
    decode_spec,
)

from . import machines
from .config import is_uuid
from .machines import OpenStackMachines, to_field

MARKS = KubermaticMarks(
    **{field: getattr(machines.MARKS, field) for field in machines.MARKS.__slots__}
)

REGION_VARIABLE = "OS_REGION_NAME"

_LONGEST = "applicationCredentialSecret"

CREDENTIALS = (
    ("authURL", "identityEndpoint", "OS_AUTH_URL"),
    ("username", "username", "OS_USERNAME"),
    ("username", "username", "OS_USER_NAME"),
    ("password", "password", "OS_PASSWORD"),
    ("domainName", "domainName", "OS_DOMAIN_NAME"),
    ("tenantName", "projectName", "OS_PROJECT_NAME"),
    ("tenantName", "tenantName", "OS_TENANT_NAME"),
    ("tenantID", "projectID", "OS_PROJECT_ID"),
    ("tenantID", "tenantID", "OS_TENANT_ID"),
    ("applicationCredentialID", "applicationCredentialID", "OS_APPLICATION_CREDENTIAL_ID"),
    (_LONGEST, _LONGEST, "OS_APPLICATION_CREDENTIAL_SECRET"),
    ("token", "tokenID", "OS_TOKEN"),
)
"""Key of a Secret of `machines`, field of the spec, and the variable that counts if it is unset.

The first row with a value counts.
"""


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename=to_field):
    """`cloudProviderSpec` of a machine. Each value may be in a Secret or ConfigMap, except tags.

    `image`, `network`, `networks`, `subnet` and `securityGroups` are names or IDs. The last fields
    have no effect here: the daemon waits for machines by its own flags, and Nova is called in a
    version of the daemon's choice. `floatingIpPool` is not supported.
    """

    identity_endpoint: ConfigVarString = ConfigVarString()
    username: ConfigVarString = ConfigVarString()
    password: ConfigVarString = ConfigVarString()
    application_credential_id: ConfigVarString = ConfigVarString()
    application_credential_secret: ConfigVarString = ConfigVarString()
    domain_name: ConfigVarString = ConfigVarString()
    project_name: ConfigVarString = ConfigVarString()
    project_id: ConfigVarString = ConfigVarString()
    tenant_name: ConfigVarString = ConfigVarString()
    tenant_id: ConfigVarString = ConfigVarString()
    token_id: ConfigVarString = ConfigVarString()
    region: ConfigVarString = ConfigVarString()
    availability_zone: ConfigVarString = ConfigVarString()
    image: ConfigVarString = ConfigVarString()
    flavor: ConfigVarString = ConfigVarString()
    security_groups: tuple[ConfigVarString, ...] = ()
    network: ConfigVarString = ConfigVarString()
    networks: tuple[ConfigVarString, ...] = ()
    subnet: ConfigVarString = ConfigVarString()
    server_group: ConfigVarString = ConfigVarString()
    root_disk_size_gb: ConfigVarNumber = ConfigVarNumber()
    root_disk_volume_type: ConfigVarString = ConfigVarString()
    config_drive: ConfigVarBool = ConfigVarBool()
    tags: dict[str, str] = {}
    floating_ip_pool: ConfigVarString = ConfigVarString()
    trust_device_path: ConfigVarBool = ConfigVarBool()
    node_volume_attach_limit: ConfigVarNumber = ConfigVarNumber()
    compute_api_version: ConfigVarString = ConfigVarString()
    instance_ready_check_period: ConfigVarString = ConfigVarString()
    instance_ready_check_timeout: ConfigVarString = ConfigVarString()


class KubermaticMachines(DeclaredSpec, OpenStackMachines):
    """Driver that implements `KubermaticSpecs`."""

    declared = Spec
    marks = MARKS
    location_fields = frozenset({"region"})  # the project is one of the credentials

    def kubermatic_spec(
        self, config: ProviderConfig, resolver: Resolver, *, strict: bool
    ) -> Mapping[str, Any]:
        """Return the provider spec of `OpenStackMachines`.

        Raises:
            InvalidArgument: the spec is invalid, or a referenced value does not exist.
            OSNotSupported: the spec names no image.
        """
        spec = decode_spec(config, Spec, strict=strict)
        text, image = resolver.get_string_value, resolver.get_string_value(spec.image)
        if strict and not image:
            raise OSNotSupported(
                f"there is no image for operatingSystem {config.operating_system!r}; set image"
            )
        if strict and text(spec.floating_ip_pool):
            raise cloud.InvalidArgument(
                "floatingIpPool is not supported; remove it, and let the nodes reach other "
                "networks through their router"
            )
        names = [text(network) for network in (spec.network, *spec.networks)]
        networks = [{"id" if is_uuid(name) else "name": name} for name in names if name]
        if networks and (subnet := text(spec.subnet)):
            networks[0]["subnet"] = subnet
        return {
            "region": resolver.get_string_value_or_env(spec.region, REGION_VARIABLE),
            "availabilityZone": text(spec.availability_zone),
            "flavorName": text(spec.flavor),
            "imageID" if is_uuid(image) else "imageName": image,
            "networks": networks,
            "securityGroups": [text(group) for group in spec.security_groups],
            "serverGroupID": text(spec.server_group),
            "rootDiskSize": resolver.get_number_value(spec.root_disk_size_gb),
            "rootDiskType": text(spec.root_disk_volume_type),
            "useConfigDrive": resolver.get_bool_value(spec.config_drive),
            "tags": spec.tags,
        }

    def kubermatic_credentials(
        self, spec: Mapping[str, Any], resolver: Resolver
    ) -> cloud.Credentials:
        """Return the credentials. Raises `InvalidArgument` if a referenced value does not exist."""
        found: dict[str, bytes] = {}
        for key, field, variable in CREDENTIALS:
            if not found.get(key):
                found[key] = resolver.get_credential(spec, field, variable)
        return cloud.Credentials({key: value for key, value in found.items() if value})

    async def migrate_uid(self, req: cloud.MachineRequest, former: str) -> None:
        """Set the UID in the metadata of the server and of its ports; keep all other metadata."""
        owner, uid = replace(req.identity, uid=former), req.identity.uid
        async with self.locate(replace(req, identity=owner, provider_id="")) as places:
            for session, _, servers in places:
                # The ports first: without a server of the former UID, the call has nothing to do.
                for port in await machines.list_ports(session, owner):
                    text = machines.describe_port(req.identity)
                    await session.neutron.set_description(port.id, text)
                for server in servers:
                    keys = {MACHINE_UID, MARKS.uid} & server.metadata.keys()
                    await session.nova.set_metadata(server.id, dict.fromkeys(keys, uid))
