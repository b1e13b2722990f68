"""API clients and event recorders, of our own cluster and of others.

One transport lies below, one client with its own rate limit per user above it. Each controller,
the events and the informers have a bucket of their own, so that a flood of events never holds up a
write; requests about the Lease never wait.

Machines may have their objects in one cluster and join another. Our own cluster has our Lease, and
is what `--kubeconfig` says. Another one is reached with the credentials of its kubeconfig; its file
is followed as ours is.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import cast

import ccm
from ccm.app import reload
from ccm.app.options import Options, names
from ccm.app.provider import Misconfigured
from ccm.base.tasks import Group, cancel_and_join, spawn
from ccm.base.throttle import Limiter, TokenBucket, Unlimited
from ccm.cloud import registry
from ccm.cloud.config import READER, Context
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import MachineDriver
from ccm.cloud.registry import Opener
from ccm.kube import config as kube_config
from ccm.kube.client import Client
from ccm.kube.events import EventRecorder
from ccm.kube.informer import Informers
from ccm.kube.resources import EVENTS as EVENT_RESOURCE
from ccm.kube.serviceaccount import ServiceAccount, acting_as
from ccm.kube.transport import Transport
from ccm.machines.flags import CONTROL, IN_CLUSTER, NO_TARGET, TARGET
from ccm.runtime.manifest import ClusterContext

INFORMERS = "shared-informers"
EVENTS = "cloud-controller-manager"
LEADER_ELECTION = "leader-election"
"""User-agent suffixes (Go cloud-provider)."""

DELETIONS = "deletions"
"""User-agent suffix for the record of deletions."""

ACCOUNTS_NAMESPACE = "kube-system"
"""Where the accounts are (Go cloud-provider)."""

_ALWAYS_OURSELVES = frozenset({INFORMERS, EVENTS, LEADER_ELECTION, DELETIONS, READER})


def user_agent(program: str) -> str:
    """`<program>/<version> (<os>/<arch>) kubernetes/ccm`, shaped as Go components do."""
    return f"{program}/{ccm.__version__} ({platform_name()}) kubernetes/ccm"


def platform_name() -> str:
    """`<os>/<arch>` by Go's names."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{platform.system().lower()}/{machine}"


class Accounts(AsyncExitStack):
    """A wire of its own for each service account that somebody acts as; leaving closes them.

    Args:
        own: the wire with our own credentials, which may ask for tokens.
    """

    def __init__(self, own: Transport) -> None:
        super().__init__()
        self._own = own
        self._wires: dict[str, tuple[Transport, ServiceAccount]] = {}

    def of(self, name: str) -> tuple[Transport, str]:
        """The wire of an account, and the name it goes by in user agents."""
        if name not in self._wires:
            asking = Client(self._own, name=name, limiter=Unlimited())
            account = ServiceAccount(asking, namespace=ACCOUNTS_NAMESPACE, name=name)
            wire = Transport(acting_as(self._own.config, account), user_agent=self._own.user_agent)
            self.push_async_exit(wire)
            self._wires[name] = wire, account
        wire, account = self._wires[name]
        return wire, account.user

    def follow(self) -> None:
        """Our own wire uses other TLS material now: so shall those of the accounts."""
        for wire, account in self._wires.values():
            wire.adopt(acting_as(self._own.config, account))


class Clients:
    """Makes clients over one transport.

    Args:
        transport: the wire.
        rate: qps and burst of each client; None = no limit.
        accounts: under which controllers act; None = all act as we do.
    """

    def __init__(
        self,
        transport: Transport,
        rate: tuple[float, int] | None,
        *,
        accounts: Accounts | None = None,
    ) -> None:
        self._transport = transport
        self._accounts = accounts
        self._rate = rate

    def named(self, name: str) -> Client:
        """A client with a bucket of its own, and with separate accounts as the account so named."""
        if name in _ALWAYS_OURSELVES:
            return Client(self._transport, name=name, limiter=self._limiter())
        wire, user = self._transport, name
        if self._accounts is not None:
            wire, user = self._accounts.of(name)
        return Client(wire, name=user, limiter=self._limiter(), graceful=True)

    def lease(self, renew_deadline_s: float) -> Client:
        """The client of leader election: never limited, and quick to give up.

        Its timeout is half the renew deadline, at least a second (Go cloud-provider).
        """
        return Client(
            self._transport,
            name=LEADER_ELECTION,
            limiter=Unlimited(),
            timeout_s=max(1.0, renew_deadline_s / 2),
            urgent=True,
        )

    def client(self, name: str) -> ProviderClient:
        """For a provider that speaks to the cluster itself."""
        return ProviderClient(self.named(name))

    def _limiter(self) -> Limiter:
        if self._rate is None:
            return Unlimited()
        qps, burst = self._rate
        return TokenBucket(qps=qps, burst=burst)


class ProviderClient:
    """The API server as the provider SDK promises it (`ccm.cloud.ApiClient`).

    Args:
        client: sends the requests.
        check: raises for a request, told by method and path, that must not be sent;
            None = all may be.
    """

    def __init__(self, client: Client, *, check: Callable[[str, str], None] | None = None) -> None:
        self._client = client
        self._check = check

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """Send a request and return the body of the answer; raises `ccm.kube.errors`."""
        if self._check is not None:
            self._check(method, path)
        return await self._client.raw(
            method, path, query=query, body=body, content_type=content_type
        )


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


FLUSH_S = 2.0
"""Longest time that stopping waits for recorded events to be delivered."""

HURRIED_FLUSH_S = 0.5
"""The same while a successor waits for the lease; the rest is delivered afterwards."""


class Events:
    """One client for all events of a cluster, one recorder per component.

    An async context manager: recorders deliver while it is open; leaving it delivers what
    is left, for at most `FLUSH_S`, unless they were abandoned.

    Args:
        client: writes them.
        others: of other clusters, which are delivered and abandoned together with these.
    """

    def __init__(self, client: Client, others: Sequence[Events] = ()) -> None:
        self._resource = client.resource(EVENT_RESOURCE)
        self._others = others
        self._recorders: dict[str, EventRecorder] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._abandoned = False

    def recorder(self, component: str) -> EventRecorder:
        """The recorder that reports as this component."""
        known = self._recorders.get(component)
        if known is None:
            known = EventRecorder(self._resource, component=component)
            self._recorders[component] = known
            self._tasks.append(spawn(known.run(), name=f"events-{component}"))
        return known

    def abandon(self) -> None:
        """The process must end now: nothing more is delivered."""
        self._abandoned = True
        for task in self._tasks:
            task.cancel()
        for one in self._others:
            one.abandon()

    async def flush(self, limit_s: float = FLUSH_S) -> None:
        """Deliver what was recorded, for at most so many seconds."""
        async with Group() as group:
            for component, recorder in self._recorders.items():
                group.start(recorder.flush(limit_s), name=f"events-flush-{component}")
            for one in self._others:
                group.start(one.flush(limit_s), name="events-flush-others")

    async def __aenter__(self) -> Events:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if not self._abandoned:
                await self.flush()
        finally:
            await cancel_and_join(*self._tasks)


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
async def other_clusters(
    options: Options, environ: Mapping[str, str]
) -> AsyncIterator[Sequence[Cluster]]:
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
