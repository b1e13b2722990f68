"""API clients and event recorders, for the daemon's cluster and for other clusters.

All clients of a cluster share one transport, and each client has its own limiters. So a flood of
events never delays a write of a controller. Requests for the Lease are not rate limited.

Machine objects may live in one cluster while their nodes join another. `--kubeconfig` selects the
daemon's cluster, which has the Lease. Every other cluster has a kubeconfig of its own. The daemon
watches all kubeconfigs for changes.
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
from ccm.app.options import Options, controllers
from ccm.app.provider import Misconfigured
from ccm.base.tasks import NamedTaskGroup, cancel_and_join, spawn
from ccm.base.throttle import Limiter, TokenBucket, Unlimited
from ccm.cloud import registry
from ccm.cloud.config import READER, Context
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import MachineDriver
from ccm.cloud.registry import Opener
from ccm.kube import config as kube_config
from ccm.kube.client import Client
from ccm.kube.events import EventRecorder
from ccm.kube.informer import SharedInformers
from ccm.kube.resources import EVENTS as EVENT_RESOURCE
from ccm.kube.serviceaccount import ServiceAccount, with_credentials
from ccm.kube.transport import Transport
from ccm.machines.flags import CONTROL, IN_CLUSTER, NO_TARGET, TARGET
from ccm.runtime.manifest import ClusterContext

INFORMERS = "shared-informers"
EVENTS = "cloud-controller-manager"
LEADER_ELECTION = "leader-election"
"""Names of clients, used as user-agent suffixes (from Go's k8s.io/cloud-provider)."""

DELETIONS = "deletions"
"""User-agent suffix of the client for the ConfigMap that records deletions."""

PERSISTENCE = "persistence"
"""User-agent suffix of the client for stored objects and the cluster's UID."""

ACCOUNTS_NAMESPACE = "kube-system"
"""Namespace of the controllers' service accounts (from Go's k8s.io/cloud-provider)."""

_DAEMON_CLIENTS = frozenset({INFORMERS, EVENTS, LEADER_ELECTION, DELETIONS, PERSISTENCE, READER})
"""Clients that always use the daemon's own credentials."""


def user_agent(program: str) -> str:
    """Return `<program>/<version> (<os>/<arch>) kubernetes/ccm`, as client-go formats it."""
    return f"{program}/{ccm.__version__} ({platform_name()}) kubernetes/ccm"


def platform_name() -> str:
    """Return `<os>/<arch>` in Go's spelling."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{platform.system().lower()}/{machine}"


class AccountTransports(AsyncExitStack):
    """Transports by service account; leaving the context closes all of them.

    Args:
        own: transport with the daemon's own credentials, used to request the accounts' tokens.
    """

    def __init__(self, own: Transport) -> None:
        super().__init__()
        self._own = own
        self._transports: dict[str, tuple[Transport, ServiceAccount]] = {}

    def get(self, name: str) -> tuple[Transport, str]:
        """Return a service account's transport, and the account's user name for user agents."""
        if name not in self._transports:
            client = Client(self._own, name=name, limiter=Unlimited())
            account = ServiceAccount(client, namespace=ACCOUNTS_NAMESPACE, name=name)
            wire = Transport(
                with_credentials(self._own.config, account), user_agent=self._own.user_agent
            )
            self.push_async_exit(wire)
            self._transports[name] = wire, account
        wire, account = self._transports[name]
        return wire, account.user

    def update_tls(self) -> None:
        """Apply the daemon's changed TLS settings to the transports of all accounts."""
        for wire, account in self._transports.values():
            wire.adopt(with_credentials(self._own.config, account))


class ClientFactory:
    """Factory of API clients over one transport.

    Args:
        transport: connection to the API server.
        rate: rate limit of each client: requests per second, and burst; None means no limit.
        is_default: whether the rate limit is the default, which no longer applies once a response
            has shown that the server has API Priority and Fairness.
        accounts: transports of the controllers' service accounts; None means that all clients
            use the daemon's own credentials.
    """

    def __init__(
        self,
        transport: Transport,
        rate: tuple[float, int] | None,
        *,
        is_default: bool = False,
        accounts: AccountTransports | None = None,
    ) -> None:
        self._transport = transport
        self._accounts = accounts
        self._rate = rate
        self._is_default = is_default

    def named(self, name: str) -> Client:
        """Return a client with its own rate limiter.

        With `accounts`, a controller's client uses the service account with the client's name.
        """
        if name in _DAEMON_CLIENTS:
            return Client(self._transport, name=name, limiter=self._limiter(self._transport))
        wire, user = self._transport, name
        if self._accounts is not None:
            wire, user = self._accounts.get(name)
        return Client(wire, name=user, limiter=self._limiter(wire), graceful=True)

    def lease(self, renew_deadline_s: float) -> Client:
        """Return the client of leader election, without a rate limit.

        Its timeout is half the renew deadline, at least 1 s (from Go's k8s.io/cloud-provider).
        """
        return Client(
            self._transport,
            name=LEADER_ELECTION,
            limiter=Unlimited(),
            timeout_s=max(1.0, renew_deadline_s / 2),
            urgent=True,
        )

    def client(self, name: str) -> ProviderClient:
        """Return an API client for the provider; implements `ccm.cloud.ClientBuilder`."""
        return ProviderClient(self.named(name))

    def _limiter(self, wire: Transport) -> Limiter:
        if self._rate is None:
            return Unlimited()
        qps, burst = self._rate
        return TokenBucket(
            qps=qps, burst=burst, lifted=lambda: self._is_default and wire.has_fairness
        )


class ProviderClient:
    """API client with the interface of the provider SDK (`ccm.cloud.ApiClient`).

    Args:
        client: sends the requests.
        check: called with (method, path); raises to forbid the request. None allows all requests.
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
        """Send a request and return the body of the response.

        Raises:
            KubeError: the request failed.
        """
        if self._check is not None:
            self._check(method, path)
        return await self._client.raw(
            method, path, query=query, body=body, content_type=content_type
        )


def load_provider(name: str) -> Opener:
    """Import the provider of this name and return its opener.

    Raises:
        Misconfigured: the provider is unknown or unusable.
    """
    try:
        return registry.load_provider(name)
    except registry.ProviderError as error:
        raise Misconfigured(str(error)) from error


def provider_opener(options: Options) -> Opener:
    """Return the opener of the provider that is selected with `--cloud-provider`.

    Without `--cloud-config`, the opener opens the provider's machine driver alone, provided that
    the enabled controllers need nothing else. Machine drivers get their credentials from
    MachineClasses.

    Raises:
        Misconfigured: the provider is unknown or unusable.
    """
    if not options.cloud_provider:
        # The daemon requires the flag; `machine-controller-manager` needs no cloud.
        return no_cloud
    provider_opener = load_provider(options.cloud_provider)
    machines = registry.declaration_of(provider_opener).machines
    if machines is None or options.cloud_config:
        return provider_opener
    alone = Cloud(name=options.cloud_provider, machines=cast("MachineDriver", object()))
    running = controllers.enabled(options.controllers)
    return (
        provider_opener
        if any(manifest.missing_interface(alone) for manifest in running)
        else machines
    )


@asynccontextmanager
async def no_cloud(_given: Context) -> AsyncIterator[Cloud]:
    """Open a cloud without any interface, for a command that needs no provider."""
    yield Cloud(name="none", has_cluster_id=True)


FLUSH_S = 2.0
"""Maximum seconds for delivering recorded events when the daemon stops."""

HURRIED_FLUSH_S = 0.5
"""Maximum seconds for delivering events before the lease is released; the remaining events follow
later.
"""


class EventRecorders:
    """Event recorders of a cluster, one for each component, with a common client.

    Recorders deliver events in the background while the context is open. Leaving the context
    delivers the remaining events, for at most `FLUSH_S`, unless `abandon` was called.

    Args:
        client: writes the events.
        others: recorders of other clusters; `flush` and `abandon` include them.
    """

    def __init__(self, client: Client, others: Sequence[EventRecorders] = ()) -> None:
        self._resource = client.resource(EVENT_RESOURCE)
        self._others = others
        self._recorders: dict[str, EventRecorder] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._abandoned = False

    def recorder(self, component: str) -> EventRecorder:
        """Return the recorder of a component; start it at the first call."""
        recorder = self._recorders.get(component)
        if recorder is None:
            recorder = EventRecorder(self._resource, component=component)
            self._recorders[component] = recorder
            self._tasks.append(spawn(recorder.run(), name=f"events-{component}"))
        return recorder

    def abandon(self) -> None:
        """Stop delivery at once and drop the remaining events, because the lease was lost."""
        self._abandoned = True
        for task in self._tasks:
            task.cancel()
        for events in self._others:
            events.abandon()

    async def flush(self, limit_s: float = FLUSH_S) -> None:
        """Deliver the recorded events, for at most `limit_s` seconds."""
        async with NamedTaskGroup() as group:
            for component, recorder in self._recorders.items():
                group.start(recorder.flush(limit_s), name=f"events-flush-{component}")
            for events in self._others:
                group.start(events.flush(limit_s), name="events-flush-others")

    async def __aenter__(self) -> EventRecorders:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if not self._abandoned:
                await self.flush()
        finally:
            await cancel_and_join(*self._tasks)


OWN_CLUSTER = ""
"""Role of the daemon's cluster in `Manifest.roles`; other clusters have roles such as `target`."""


def counts_deletions(options: Options) -> bool:
    """Return whether the ConfigMap that records deletions is needed.

    Only deletions by controllers that use the daemon's cluster are recorded.
    """
    running = controllers.enabled(options.controllers)
    return any(OWN_CLUSTER in manifest.roles(options, "", "") for manifest in running)


def remote_kubeconfigs(options: Options) -> Mapping[str, str]:
    """Return the kubeconfigs of the clusters other than the daemon's, by role."""
    own = options.kubeconfig or ("" if options.master else IN_CLUSTER)
    target = options.target_kubeconfig or own
    control = options.control_kubeconfig or (own if target == NO_TARGET else target)
    roles = {CONTROL: control, TARGET: target}
    return {role: file for role, file in roles.items() if file not in (own, NO_TARGET)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCluster:
    """A cluster other than the daemon's.

    Attributes:
        roles: roles of the cluster, such as `target`.
        transport: connection to the cluster's API server.
        clients: factory of API clients for the cluster.
        events: factory of event recorders for the cluster.
        source: the cluster's kubeconfig, watched for changes.
        signatures: signature of the kubeconfig, taken before the file was read.
    """

    roles: Sequence[str]
    transport: Transport
    clients: ClientFactory
    events: EventRecorders
    source: reload.ReloadSource
    signatures: reload.Signatures

    def context(self, resync_s: float) -> ClusterContext:
        """Return the context for controllers, with new informers of this cluster."""
        return ClusterContext(
            client=self.clients.named,
            recorder=self.events.recorder,
            informers=SharedInformers(self.clients.named(INFORMERS), resync_s=resync_s),
        )


@asynccontextmanager
async def other_clusters(
    options: Options, environ: Mapping[str, str]
) -> AsyncIterator[Sequence[RemoteCluster]]:
    """Connect to all clusters other than the daemon's, for the duration of the block.

    Raises:
        Misconfigured: a kubeconfig cannot be used.
    """
    by_file: dict[str, list[str]] = {}
    for role, file in remote_kubeconfigs(options).items():
        by_file.setdefault(file, []).append(role)
    async with AsyncExitStack() as stack:
        yield [
            await _connect(stack, file, roles, options, environ) for file, roles in by_file.items()
        ]


async def _connect(
    stack: AsyncExitStack,
    file: str,
    roles: Sequence[str],
    options: Options,
    environ: Mapping[str, str],
) -> RemoteCluster:
    path = "" if file == IN_CLUSTER else file
    name, since = f"{roles[0]}-kubeconfig", reload.signatures(path)
    try:
        config = await asyncio.to_thread(kube_config.load, path, environ=environ)
    except kube_config.ClusterConfigError as error:
        raise Misconfigured(f"--{name}={error}") from error
    wire = Transport(config, user_agent=user_agent(options.program))
    await stack.enter_async_context(wire)
    clients = ClientFactory(wire, options.api_rate, is_default=options.is_default_api_rate)
    return RemoteCluster(
        roles=roles,
        transport=wire,
        clients=clients,
        events=await stack.enter_async_context(EventRecorders(clients.named(EVENTS))),
        source=reload.KubeconfigSource(path, wire, environ=environ, name=name),
        signatures=since,
    )
