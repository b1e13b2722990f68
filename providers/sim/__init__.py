"""The simulated cloud: nodes from a cloud that runs on your own machine.

Provider ID   sim://<instance id>
Cloud config  YAML, see `config`: url, token (both required), timeout, connect_timeout
Absent        load balancers, routes, machines

This package holds two programs that meet only over HTTP. `config`, `client` and
`instances` are the provider, written as a model for your own. `world`, `faults`,
`traffic`, `api`, `server` and `state` are the cloud itself, started by
`python -m providers.sim`; the provider imports none of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from ccm import cloud

from . import client, config, instances


@cloud.provider(sdk="1.0")
async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
    """Open the provider; no request is made before the first question.

    Raises:
        ConfigError: the cloud config is wrong; the message names every fault.
    """
    settings = config.read(context)
    async with client.open_client(settings) as api:
        servers = instances.SimInstances(api)
        yield cloud.Cloud(name=instances.SCHEME, instances=servers, inventory=servers)
