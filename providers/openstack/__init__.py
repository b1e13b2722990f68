"""OpenStack: nodes, load balancers, routes and machines.

Provider ID   openstack:///<server ID>, or openstack://<region>/<server ID>; both are read
Settings      `cloud.conf`, clouds.yaml and the environment, see `config`
Annotations   of Services, see `service_annotations`
Machines      see `machines`

`client` has tokens, catalogue and errors; `nova`, `neutron` and `octavia` have the calls of the
services. `instances`, `routes`, `balancers` with `balancer_specs`, and `machines` implement the
interfaces of the SDK. `testing` is a fake of the cloud, which the provider does not import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ccm import cloud

from . import client, config

PROVIDER = "openstack"
"""Name of the provider, and scheme of provider IDs."""


@cloud.provider(sdk="2.0", config=config.Config, form="INI")
async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Open the provider without sending a request.

    Raises:
        ConfigError: the settings are invalid; the message lists every problem.
        ProviderError: the extra `openstack` is not installed.
    """
    settings, _ = config.read_all(context)
    timeout_s = settings.metadata.request_timeout.total_seconds()
    async with client.open_client(settings.global_, timeout_s):
        yield cloud.Cloud(name=PROVIDER, has_cluster_id=True)
