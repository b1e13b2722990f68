"""The Hetzner Cloud: nodes, load balancers, routes and machines.

Provider ID   hcloud://<server ID>; of a dedicated server hrobot://<number>, formerly hcloud://bm-
Settings      environment, or cloud config in YAML, see `config`
Annotations   of Services, see `service_annotations`
Machines      see `machines`

`client` calls the API and keeps to its rate limit. `instances`, `networks`, `routes`, `balancers`
with `balancer_specs`, and `machines` implement the interfaces of the SDK. `robot` calls the web
service of dedicated servers, for `robot_nodes` and `robot_targets`. `names` has labels and event
reasons. `testing` is a fake of the cloud, which the provider does not import.

`Cloud.account` is empty: the API does not tell the project of a token, and a hash of the token
would change with each rotation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ccm import cloud
from ccm.base.parsing import parse_url
from ccm.cloud.kubermatic import KubermaticDriver

from . import (
    balancers,
    client,
    config,
    instances,
    kubermatic,
    machines,
    networks,
    robot,
    robot_nodes,
    routes,
    service_annotations,
)

ANNOTATIONS = (service_annotations.PREFIX,)


@cloud.provider(sdk="2.0", offers=("machines",))
async def open_machines(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Open the machine driver without a cloud config.

    `HCLOUD_ENDPOINT` overrides the API's address; each request brings its own token.

    Raises:
        ConfigError: the endpoint is not a valid URL.
    """
    endpoint = context.environ.get("HCLOUD_ENDPOINT", "") or config.ENDPOINT
    try:
        clients = machines.open_clients(parse_url(endpoint))
    except ValueError as error:
        text = f"HCLOUD_ENDPOINT is {endpoint!r}; it must look like https://host/v1"
        raise cloud.ConfigError(text) from error
    async with clients:
        yield cloud.Cloud(
            name=instances.SCHEME,
            machines=machines.HcloudMachines(clients),
            kubermatic=_kubermatic(clients, context),
            has_cluster_id=True,
        )


def _kubermatic(clients: machines.Clients, context: cloud.Context) -> cloud.MachineDriver:
    return KubermaticDriver(kubermatic.KubermaticMachines(clients), context.environ)


@cloud.provider(
    sdk="2.0",
    config=config.Config,
    offers=("instances", "inventory", "load_balancer", "routes", "machines"),
    service_annotations=ANNOTATIONS,
    service_annotation_schema=service_annotations.SCHEMA,
    machines=open_machines,
)
async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Open the provider without sending a request.

    Raises:
        ConfigError: the settings are invalid; the message lists every problem.
    """
    settings = context.settings(config.Config, environment=True)
    config.log_unusual_settings(settings)
    async with (
        client.open_client(settings.endpoint, settings.token) as api,
        robot.open_robot(settings) as dedicated,
        machines.open_clients(settings.endpoint) as clients,
    ):
        pods = context.pod_ranges if settings.has_routes else ()
        network = networks.ClusterNetwork(api, settings.network, pods)
        servers = instances.HcloudInstances(api, settings, network)
        if settings.robot_enabled:
            servers = robot_nodes.MixedInstances(api, settings, network, dedicated, context.warn)
        offers_balancers, offers_routes = settings.balancers_enabled, settings.has_routes
        yield cloud.Cloud(
            name=instances.SCHEME,
            schemes=(instances.SCHEME, robot.SCHEME) if dedicated else (),
            foreign_ids=() if dedicated else (instances.LEGACY_ROBOT_PREFIX,),
            instances=servers,
            inventory=servers,
            load_balancer=balancers.HcloudBalancers(api, settings, network, context.warn, dedicated)
            if offers_balancers
            else None,
            routes=routes.HcloudRoutes(api, network, pods, context.warn) if offers_routes else None,
            machines=machines.HcloudMachines(clients),
            kubermatic=_kubermatic(clients, context),
            limits=cloud.Limits(concurrent_routes=1),  # a network takes one change at a time
            service_annotations=ANNOTATIONS,
            service_annotation_schema=service_annotations.SCHEMA,
            always_ensure_deleted=True,
            has_cluster_id=True,  # load balancers have a cluster label; a network has one cluster
        )
