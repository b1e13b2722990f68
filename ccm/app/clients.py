"""One transport below, one client with its own rate limit per user above it.

Each controller, the events and the informers have a bucket of their own, so that a flood
of events never holds up a write; requests about the Lease never wait.
"""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import ccm
from ccm.app.options import Options, names
from ccm.app.provider import Misconfigured
from ccm.base.throttle import Limiter, TokenBucket, Unlimited
from ccm.cloud import registry
from ccm.cloud.config import READER, Context
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import MachineDriver
from ccm.cloud.registry import Opener
from ccm.kube.client import Client
from ccm.kube.serviceaccount import ServiceAccount, acting_as
from ccm.kube.transport import Transport

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
