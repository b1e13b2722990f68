"""STACKIT: nodes, load balancers and machines.

Provider ID   stackit://<server ID>, or stackit://<project ID>/<server ID>; both are read
Settings      cloud config in YAML, credentials from the environment, see `config`
Annotations   of Services, see `service_annotations`
Machines      see `machines`

`iaas` and `lbapi` call the two APIs, with the credentials of `auth` and the error table of
`refusals`. `instances`, `balancers` with `balancer_specs`, and `machines` implement the interfaces
of the SDK. `testing` is a fake of the cloud, which the provider does not import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ccm import cloud
from ccm.cloud.kubermatic import KubermaticDriver

from . import (
    auth,
    balancers,
    config,
    iaas,
    instances,
    kubermatic,
    lbapi,
    machines,
    service_annotations,
)
from .marks import StackitProviderName

ANNOTATIONS = (service_annotations.PREFIX, service_annotations.LEGACY)


@cloud.provider(sdk="2.0", offers=("machines",))
async def open_machines(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Open the machine driver without a cloud config; each request brings its own credentials.

    Raises:
        ConfigError: an environment variable is invalid.
    """
    async with machines.open_clients(config.read_variables(context)) as clients:
        yield cloud.Cloud(
            name=StackitProviderName,
            machines=machines.StackitMachines(clients),
            kubermatic=KubermaticDriver(kubermatic.KubermaticMachines(clients), context.environ),
            has_cluster_id=True,
        )


@cloud.provider(
    sdk="2.0",
    config=config.Config,
    offers=("instances", "inventory", "load_balancer", "machines"),
    service_annotations=ANNOTATIONS,
    service_annotation_schema=service_annotations.SCHEMA,
    machines=open_machines,
)
async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Open the provider without sending a request.

    Raises:
        ConfigError: the settings are invalid; the message lists every problem.
    """
    settings, given = config.read_all(context)
    place = settings.global_
    emergency = given.lb_api_emergency_token
    async with (
        config.open_authorizer(given) as authorizer,
        iaas.open_client(place.api_endpoints.iaas_api, authorizer) as api,
        lbapi.open_client(
            place.api_endpoints.load_balancer_api,
            auth.StaticToken(emergency) if emergency else authorizer,
            project_id=place.project_id,
            region=place.region,
        ) as balancing,
        machines.open_clients(given, place.api_endpoints.iaas_api) as clients,
    ):
        servers = instances.StackitInstances(api, settings)
        yield cloud.Cloud(
            name=StackitProviderName,
            instances=servers,
            inventory=servers,
            load_balancer=balancers.StackitBalancers(
                balancing,
                settings.load_balancer,
                balancers.MetricsCredentials(balancing, given),
                context,
            ),
            machines=machines.StackitMachines(clients),
            kubermatic=KubermaticDriver(kubermatic.KubermaticMachines(clients), context.environ),
            schemes=instances.SCHEMES,
            account=f"{place.project_id}/{place.region}",
            service_annotations=ANNOTATIONS,
            service_annotation_schema=service_annotations.SCHEMA,
            always_ensure_deleted=True,
            load_balancers_check_health=False,
            has_cluster_id=True,
        )
