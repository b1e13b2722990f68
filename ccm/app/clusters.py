"""Clusters beside our own: machines may have their objects in one, and join another.

Our own cluster has our Lease, and is what `--kubeconfig` says. Another one is reached with the
credentials of its kubeconfig, whoever acts; its file is followed as ours is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from ccm.app import reload
from ccm.app.clients import EVENTS, INFORMERS, Clients, user_agent
from ccm.app.events import Events
from ccm.app.options import Options, names
from ccm.app.provider import Misconfigured
from ccm.gardener.flags import CONTROL, IN_CLUSTER, NO_TARGET, TARGET
from ccm.kube import config as kube_config
from ccm.kube.informer import Informers
from ccm.kube.transport import Transport
from ccm.runtime.manifest import ClusterContext

OWN = ""
"""What our own cluster is to a controller that knows no other one."""


def counts_deletions(options: Options) -> bool:
    """Whether any controller runs whose deletions are counted: those of our own cluster alone."""
    running = names.enabled(options.controllers)
    return any(OWN in one.roles(options, "", "") for one in running)


def elsewhere(options: Options) -> Mapping[str, str]:
    """What a cluster is to controllers -> its kubeconfig, where that is not our own cluster."""
    own = options.kubeconfig or ("" if options.master else IN_CLUSTER)
    target = options.target_kubeconfig or own
    control = options.control_kubeconfig or (own if target == NO_TARGET else target)
    roles = {CONTROL: control, TARGET: target}
    return {role: file for role, file in roles.items() if file not in (own, NO_TARGET)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Another cluster.

    Attributes:
        roles: what it is to controllers.
        transport: the wire.
        clients: makes API clients.
        events: makes event recorders.
        source: its kubeconfig, followed.
        since: what that looked like before it was read.
    """

    roles: Sequence[str]
    transport: Transport
    clients: Clients
    events: Events
    source: reload.Source
    since: reload.Signatures

    def context(self, resync_s: float) -> ClusterContext:
        """What controllers are made of, with caches of their own."""
        return ClusterContext(
            client=self.clients.named,
            recorder=self.events.recorder,
            informers=Informers(self.clients.named(INFORMERS), resync_s=resync_s),
        )


@asynccontextmanager
async def opened(options: Options, environ: Mapping[str, str]) -> AsyncIterator[Sequence[Cluster]]:
    """All other clusters, until the block ends.

    Raises:
        Misconfigured: a kubeconfig cannot be used.
    """
    by_file: dict[str, list[str]] = {}
    for role, file in elsewhere(options).items():
        by_file.setdefault(file, []).append(role)
    async with AsyncExitStack() as stack:
        yield [
            await _opened(stack, file, roles, options, environ) for file, roles in by_file.items()
        ]


async def _opened(
    stack: AsyncExitStack,
    file: str,
    roles: Sequence[str],
    options: Options,
    environ: Mapping[str, str],
) -> Cluster:
    path = "" if file == IN_CLUSTER else file
    name, since = f"{roles[0]}-kubeconfig", reload.signatures(path)
    try:
        config = await asyncio.to_thread(kube_config.load, path, environ=environ)
    except kube_config.ConfigError as error:
        raise Misconfigured(f"--{name}={error}") from error
    wire = Transport(config, user_agent=user_agent(options.program))
    await stack.enter_async_context(wire)
    clients = Clients(wire, options.api_rate)
    return Cluster(
        roles=roles,
        transport=wire,
        clients=clients,
        events=await stack.enter_async_context(Events(clients.named(EVENTS))),
        source=reload.Kubeconfig(path, wire, environ=environ, name=name),
        since=since,
    )
