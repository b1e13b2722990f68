"""The simulated cloud: nodes, load balancers, routes and machines on your own machine.

Provider ID   sim://<instance id>
Cloud config  YAML, see `client.Config`
Annotations   of Services, see `balancers`
Machines      see `machines`

This package contains two programs that communicate over HTTP only. `client`, `instances`,
`balancers`, `routes` and `machines` are the provider, a model for other providers. The other
modules are the cloud, started by `python -m providers.sim`: `state`, `world` and `world_balancers`
hold its state, `server` has its API. The provider imports none of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ccm import cloud
from ccm.cloud.kubermatic import KubermaticDriver
from ccm.model import names

from . import balancers, client, instances, kubermatic, machines, routes

ANNOTATIONS = (balancers.PREFIX, names.ANNOTATION_SOURCE_RANGES)


@cloud.provider(sdk="2.0", offers=("machines",))
async def open_machines(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Open the machine driver without a cloud config.

    `SIM_URL` holds the address of the cloud; each request brings its own token.

    Raises:
        ConfigError: `SIM_URL` is not a valid URL.
    """
    url = client.read_url(context.environ)
    async with machines.open_clients(url) as clients:
        yield cloud.Cloud(
            name=instances.SCHEME,
            account=url,
            machines=machines.SimMachines(clients),
            kubermatic=KubermaticDriver(kubermatic.KubermaticMachines(clients), context.environ),
            has_cluster_id=True,
        )


@cloud.provider(
    sdk="2.0",
    config=client.Config,
    offers=("instances", "inventory", "load_balancer", "routes", "machines"),
    service_annotations=ANNOTATIONS,
    service_annotation_schema=balancers.SCHEMA,
    machines=open_machines,
)
async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Open the provider without sending a request.

    Raises:
        ConfigError: the cloud config is invalid; the message lists every problem.
    """
    settings = context.settings(client.Config)
    async with client.open_client(settings) as api, machines.open_clients(settings.url) as clients:
        servers = instances.SimInstances(api)
        yield cloud.Cloud(
            name=instances.SCHEME,
            account=settings.url,
            instances=servers,
            inventory=servers,
            load_balancer=balancers.SimBalancers(api),
            routes=routes.SimRoutes(api),
            machines=machines.SimMachines(clients),
            kubermatic=KubermaticDriver(kubermatic.KubermaticMachines(clients), context.environ),
            service_annotations=ANNOTATIONS,
            service_annotation_schema=balancers.SCHEMA,
            always_ensure_deleted=True,
            has_cluster_id=True,
        )
