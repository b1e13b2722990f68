"""Which opener opens the provider that the flags name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from ccm.app.options import Options, names
from ccm.app.provider import Misconfigured
from ccm.cloud import registry
from ccm.cloud.config import Context
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import MachineDriver
from ccm.cloud.registry import Opener


def load(name: str) -> Opener:
    """The provider of that name; imports it.

    Raises:
        Misconfigured: there is none that can be used.
    """
    try:
        return registry.load(name)
    except registry.ProviderError as error:
        raise Misconfigured(str(error)) from error


def opener(options: Options) -> Opener:
    """What opens the provider that the flags name.

    Without a cloud config, and where no controller runs that needs more, that is its machine
    driver alone: the credentials of machines come with their classes.

    Raises:
        Misconfigured: there is none that can be used.
    """
    if not options.cloud_provider:
        # The daemon itself insists on one; of the commands for machines one needs no cloud.
        return no_cloud
    found = load(options.cloud_provider)
    machines = registry.declared(found).machines
    if machines is None or options.cloud_config:
        return found
    alone = Cloud(name=options.cloud_provider, machines=cast("MachineDriver", object()))
    running = names.enabled(options.controllers)
    return found if any(one.lacks(alone) for one in running) else machines


@asynccontextmanager
async def no_cloud(_given: Context) -> AsyncIterator[Cloud]:
    """What stands for a provider where nothing has to do with a cloud."""
    yield Cloud(name="none", has_cluster_id=True)
