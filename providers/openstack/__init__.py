"""OpenStack: nodes, load balancers, routes and machines.

Provider ID   openstack:///<server ID>, or openstack://<region>/<server ID>; both are read
Settings      `cloud.conf`, clouds.yaml and the environment, see `config`
Annotations   of Services, see `service_annotations`
Machines      see `machines`

`client` has tokens, catalogue and errors; `nova`, `neutron` and `octavia` have the calls of the
services. `instances`, `routes`, `balancers` with `balancer_specs`, and `machines` implement the
interfaces of the SDK. `examination` has the findings for doctor, and `metrics` the Go manager's
metrics. `testing` is a fake of the cloud, which the provider does not import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ccm import cloud
from ccm.cloud.kubermatic import KubermaticDriver

from . import (
    balancers,
    client,
    config,
    examination,
    instances,
    kubermatic,
    machines,
    neutron,
    nova,
    routes,
    service_annotations,
)

ROUTES = 10
"""Maximum concurrent route changes; each locks the router in the database of Neutron."""


@cloud.provider(sdk="2.0", offers=("machines",))
async def open_machines(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Open the machine driver without a cloud config; each request brings its own credentials.

    Raises:
        ConfigError: an environment variable is invalid.
        ProviderError: the extra `openstack` is not installed.
    """
    client.check_library()
    is_regional = config.read_variables(context).os_ccm_regional
    async with machines.open_clients() as clients:
        yield cloud.Cloud(
            name=instances.SCHEME,
            machines=machines.OpenStackMachines(clients, is_regional=is_regional),
            kubermatic=_kubermatic(clients, context, is_regional=is_regional),
            has_cluster_id=True,
        )


def _kubermatic(
    clients: machines.Clients, context: cloud.Context, *, is_regional: bool
) -> cloud.MachineDriver:
    driver = kubermatic.KubermaticMachines(clients, is_regional=is_regional)
    return KubermaticDriver(driver, context.environ)


@cloud.provider(
    sdk="2.0",
    config=config.Config,
    form="INI",
    offers=("instances", "inventory", "load_balancer", "routes", "machines"),
    service_annotations=service_annotations.RELEVANT,
    service_annotation_schema=service_annotations.SCHEMA,
    machines=open_machines,
)
async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Open the provider without sending a request.

    Raises:
        ConfigError: the settings are invalid; the message lists every problem.
        ProviderError: the extra `openstack` is not installed.
    """
    settings, variables = config.read_all(context)
    timeout_s = settings.metadata.request_timeout.total_seconds()
    is_regional = variables.os_ccm_regional
    async with (
        client.open_client(settings.global_, timeout_s) as api,
        machines.open_clients() as clients,
    ):
        compute, network = nova.Nova(api), neutron.Neutron(api)
        servers = instances.OpenStackInstances(compute, network, settings, is_regional=is_regional)
        router_id, pods = settings.route.router_id, context.pod_ranges
        router = routes.OpenStackRoutes(compute, network, router_id, pods) if router_id else None
        yield cloud.Cloud(
            name=instances.SCHEME,
            instances=servers,
            inventory=servers,
            load_balancer=balancers.OpenStackBalancers(api, settings, context)
            if settings.load_balancer.enabled
            else None,
            routes=router,
            set_informers=router.set_informers if router else None,
            machines=machines.OpenStackMachines(clients, is_regional=is_regional),
            kubermatic=_kubermatic(clients, context, is_regional=is_regional),
            limits=cloud.Limits(concurrent_routes=ROUTES),
            service_annotations=service_annotations.RELEVANT,
            service_annotation_schema=service_annotations.SCHEMA,
            examine=lambda: examination.examine(api, settings),
            always_ensure_deleted=True,  # a floating IP or security group may be left
            has_cluster_id=True,  # load balancers are named after it; a router has one cluster
        )
