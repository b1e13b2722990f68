"""Opens the provider, with retries, and replaces it when its configuration changes.

At the start, a configuration error (unknown name, unreadable file, invalid content) ends the
process with one message. After a temporary failure (cloud down, credentials rejected), opening is
retried with back-off. The first failure and the later success are logged.

Each provider is opened and closed in a task of its own, because a provider may hold a task group or
a cancel scope. After a configuration change, a new provider is opened. The new provider replaces
the old one after a successful check. The old provider is closed when its last call has ended.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ccm.app.options import Options
from ccm.base import log
from ccm.base.backoff import ExponentialBackoff, FailureStreak
from ccm.base.clock import monotonic
from ccm.base.files import Signature, describe_error
from ccm.base.log import Outage
from ccm.base.tasks import cancel_and_join, leaf_exceptions, spawn
from ccm.base.throttle import TokenBucket
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.calls.responses import find_interface_errors
from ccm.cloud.config import ClientBuilder, Context, EventSink
from ccm.cloud.errors import CloudError, FailedPrecondition, NotFound, Unimplemented, normalize
from ccm.cloud.interface import Cloud, InstancesV2, Inventory
from ccm.cloud.lookup import InstanceLookup, NodeOwnership
from ccm.cloud.registry import Opener, ProviderError
from ccm.cloud.settings import ConfigError
from ccm.model import Node
from ccm.model.cidr import parse_ranges
from ccm.model.names import STATUS_TRUE

OPEN_BACK_OFF = ExponentialBackoff(base_s=1.0, factor=2.0, cap_s=30.0, jitter=0.2)
"""Back-off between attempts to open the provider."""

NODE_SAMPLE_SIZE = 8
"""Maximum number of nodes in the check of a new provider."""

OPEN_LIMIT_S = 120.0
"""Seconds for one attempt to open the provider; a cloud may accept a connection but not answer."""

DRAIN_S = 900.0
"""Maximum seconds to wait for in-flight calls of a replaced provider: the longest call timeout."""

CLOSE_S = 30.0
"""Seconds that a provider may take to close before its task is cancelled."""

NO_FILE = "no --cloud-config"
"""Source of the configuration in messages, if there is no file."""

ProviderFactory = Callable[[], AbstractAsyncContextManager[Cloud]]
"""Function without arguments whose result is a context manager that opens the provider."""


class Misconfigured(Exception):
    """A configuration error, which only the administrator can correct; the process exits with 1."""


def find_misconfigured(error: BaseException) -> Misconfigured | None:
    """Return the configuration error that an exception is, or contains; None if there is none.

    A task group of the provider may wrap the error in an exception group.
    """
    return next((leaf for leaf in leaf_exceptions(error) if isinstance(leaf, Misconfigured)), None)


class ProviderCrashed(Exception):
    """The task of the provider in use ended; `__cause__` is the task's exception, if any."""


def context(*, file: str, cluster_name: str, clients: ClientBuilder | None, **more: Any) -> Context:
    """Return the argument of the provider's opener.

    Args:
        file: value of `--cloud-config`; empty means no configuration.
        cluster_name: value of `--cluster-name`.
        clients: makes API clients for the provider; None means that there is no API server.
        more: further fields of `Context`.

    Raises:
        Misconfigured: the file cannot be read.
    """
    try:
        content = Path(file).read_bytes() if file else b""
    except OSError as error:
        raise Misconfigured(
            f"--cloud-config={file} cannot be read: {describe_error(error)}"
        ) from error
    return Context(
        config=content,
        source=file or NO_FILE,
        cluster_name=cluster_name,
        clients=clients,
        environ=os.environ,
        **more,
    )


@asynccontextmanager
async def opened_once(name: str, opener: Opener, given: Context) -> AsyncIterator[Cloud]:
    """Open the provider for the block, without a retry.

    Raises:
        Misconfigured: the provider rejects its configuration, or violates the interface of the SDK.
        Exception: any other failure to open; it may be temporary.
    """
    async with AsyncExitStack() as stack:
        try:
            # The provider may contain a task group, so one task must enter and leave it.
            async with asyncio.timeout(OPEN_LIMIT_S):
                cloud = await stack.enter_async_context(_enter(opener, given))
        except Exception as error:
            # A retry after a configuration error would fail again. A task group of the provider
            # may wrap the error.
            for leaf in leaf_exceptions(error):
                if mistake := _config_error(name, given, leaf):
                    raise Misconfigured(mistake) from leaf
            raise
        fault = _sdk_violation(name, cloud)
        if not fault:
            yield cloud
    if fault:  # raised after the stack has closed the provider
        raise Misconfigured(fault)


def _enter(opener: Opener, given: Context) -> AbstractAsyncContextManager[Cloud]:
    manager: object = opener(given)
    if not isinstance(manager, AbstractAsyncContextManager):
        raise ProviderError(
            f"the opener returned a {type(manager).__name__}, not an async context manager; "
            "decorate it with @cloud.provider"
        )
    return manager


def _config_error(name: str, given: Context, error: BaseException) -> str:
    """Return the message for a configuration error; empty for an error that may be temporary."""
    if isinstance(error, ConfigError):
        refused = f"cloud provider {name!r} rejects --cloud-config={given.source}"
        if given.source == NO_FILE:
            refused = f"cloud provider {name!r} needs a configuration; pass --cloud-config=FILE"
        return "\n  ".join([f"{refused}:", *error.faults])
    if isinstance(error, ProviderError):
        return f"cloud provider {name!r}: {error}"
    # contextlib raises this for a generator that ends before it yields.
    if isinstance(error, RuntimeError) and isinstance(error.__context__, StopAsyncIteration):
        return f"cloud provider {name!r} yielded no Cloud; it must yield one on every path"
    return ""


def _sdk_violation(name: str, cloud: object) -> str:
    """Return why the object that the provider yielded is no usable Cloud; empty if it is usable."""
    if not isinstance(cloud, Cloud):
        return f"cloud provider {name!r} yielded a {type(cloud).__name__}, not a Cloud"
    faults = find_interface_errors(cloud)
    return "\n  ".join([f"cloud provider {name!r} is incomplete:", *faults]) if faults else ""


def make_handle(
    options: Options, cloud: Cloud, *, make: Callable[..., CloudClient] = CloudClient
) -> CloudClient:
    """Return the client for calls to a provider, with the timeout and rate limit of the flags.

    Args:
        options: the flags.
        cloud: the open provider.
        make: constructor with the signature of `CloudClient`.
    """
    rate = options.cloud_rate
    return make(
        cloud,
        cluster_name=options.cluster_name,
        deadline_s=options.cloud_call_timeout.total_seconds() or None,
        limiter=TokenBucket(qps=rate[0], burst=rate[1]) if rate else None,
    )


class ConfiguredProvider:
    """Opens the provider selected with `--cloud-provider`, with the current configuration.

    Args:
        options: the flags.
        opener: opens the provider.
        clients: makes API clients for the provider.

    Attributes:
        watched_files: signatures of the files that the provider asks to watch, each taken before
            the file was read.
        events: destination of the provider's events; None until the daemon sets it.
    """

    def __init__(self, options: Options, opener: Opener, clients: ClientBuilder) -> None:
        self.watched_files: dict[Path, Signature] = {}
        self.events: EventSink | None = None
        self._options = options
        self._opener = opener
        self._clients = clients

    @asynccontextmanager
    async def opened(
        self, on_failure: Callable[[Exception], object] = lambda _error: None
    ) -> AsyncIterator[Cloud]:
        """Open the provider for the block; retry after temporary failures, with back-off.

        Args:
            on_failure: called with the error of each failed attempt.

        Raises:
            Misconfigured: a configuration error; see `opened_once`.
        """
        outage = Outage(
            log.logger("provider", provider=self._options.cloud_provider),
            start_message="provider cannot be opened, retrying",
            end_message="provider opened",
        )
        streak = FailureStreak(policy=OPEN_BACK_OFF, rng=random.Random())
        async with AsyncExitStack() as stack:
            while True:
                try:
                    cloud = await stack.enter_async_context(self.opened_once())
                    break
                except Exception as error:  # noqa: BLE001 - a provider may fail in any way
                    if refusal := find_misconfigured(error):
                        # Chained to the cause of `refusal`, instead of the exception group.
                        raise refusal from refusal.__cause__
                    delay, fault = streak.next_delay(monotonic()), normalize(error)
                    outage.record_failure(error=str(fault))
                    on_failure(fault)
                await asyncio.sleep(delay)
            outage.record_success(attempt=streak.failures + 1)
            yield cloud

    @asynccontextmanager
    async def opened_once(self) -> AsyncIterator[Cloud]:
        """Open the provider for the block, without a retry.

        Raises:
            Misconfigured: a file cannot be read, the provider rejects its configuration or
                violates the interface of the SDK, or it has no cluster ID and
                --allow-untagged-cloud is false.
            Exception: any other failure to open; it may be temporary.
        """
        routed = self._options.cluster_cidr.strip() if self._options.configure_cloud_routes else ""
        given = context(
            file=self._options.cloud_config,
            cluster_name=self._options.cluster_name,
            clients=self._clients,
            followed=self.watched_files,
            pod_ranges=parse_ranges(routed) if routed else (),
            events=self.events,
        )
        async with opened_once(self._options.cloud_provider, self._opener, given) as cloud:
            self._check_cluster_id(cloud)
            yield cloud

    def _check_cluster_id(self, cloud: Cloud) -> None:
        if cloud.has_cluster_id:
            return
        detail = (
            f"cloud provider {cloud.name!r} cannot distinguish the objects of this cluster (no "
            "cluster ID)"
        )
        if not self._options.allow_untagged_cloud:
            raise Misconfigured(f"{detail}; set a cluster ID, or pass --allow-untagged-cloud")
        log.logger("daemon").warning("cloud has no cluster ID", error=detail)


async def check_reachable(cloud: Cloud, node: Node | None) -> None:
    """Check that the cloud answers a read-only call.

    Args:
        cloud: the open provider.
        node: a node whose instance is looked up if the provider has no `Inventory`; if None, such a
            provider is not called.

    Raises:
        CloudError: the call failed.
    """
    handle = CloudClient(cloud)
    with suppress(NotFound, Unimplemented):
        if cloud.inventory is not None:
            await handle.call(Inventory.list_instances)
        elif cloud.instances is not None and node is not None:
            await handle.call(InstancesV2.instance_exists, node)


async def check_knows_nodes(
    new: Cloud, old: CloudClient, nodes: Sequence[Node], *, node_selector: str = ""
) -> None:
    """Reject a provider that knows none of the nodes that the provider in use knows.

    Only a sample of `NODE_SAMPLE_SIZE` nodes is checked. If the provider in use cannot answer, for
    example because its credentials have expired, it counts as knowing each Ready node.

    Args:
        new: the new provider, open.
        old: client for the provider in use.
        nodes: nodes of the cluster.
        node_selector: value of `--node-selector`.

    Raises:
        CloudError: the new provider knows none of the nodes, or a call to it failed.
    """
    before = NodeOwnership.for_cloud(old.cloud, node_selector)
    after = NodeOwnership.for_cloud(new, node_selector)
    ours = [node for node in nodes if node.provider_id or node.uid in old.confirmed]
    ours = [node for node in ours if not before.is_foreign(node)]
    # Ready nodes first, because their instances certainly exist.
    sampled = sorted(random.sample(ours, len(ours)), key=lambda node: not _is_ready(node))[
        :NODE_SAMPLE_SIZE
    ]
    asked_new, asked_old = InstanceLookup(CloudClient(new)), InstanceLookup(old)
    with suppress(Unimplemented):
        for node in sampled:
            # A node of another cloud needs no call: the new provider does not know it.
            if not after.is_foreign(node) and (await asked_new.state(node)).exists:
                return
        for node in sampled:
            try:
                is_known = (await asked_old.state(node)).exists
            except CloudError:
                is_known = _is_ready(node)
            if is_known:
                names = ", ".join(sorted(candidate.name for candidate in sampled))
                raise FailedPrecondition(
                    f"with this configuration the cloud has no instance of the nodes {names}; "
                    "check that the credentials belong to the same project and region. A restart "
                    "would use the configuration anyway"
                )


def _is_ready(node: Node) -> bool:
    return node.ready == STATUS_TRUE


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenProvider:
    """An open provider.

    Attributes:
        cloud: the provider.
        task: task that opened the provider and will close it.
        release: event that makes the task close the provider.
    """

    cloud: Cloud
    task: asyncio.Task[None]
    release: asyncio.Event

    async def close(self) -> None:
        """Close the provider.

        Raises:
            TimeoutError: the provider did not close within `CLOSE_S`; its task was cancelled.
            Exception: the error of the provider.
        """
        self.release.set()
        try:
            ended, _ = await asyncio.wait({self.task}, timeout=CLOSE_S)
        finally:
            await cancel_and_join(self.task)
        if not ended:
            raise TimeoutError(f"the provider did not close within {CLOSE_S:g} s")
        if not self.task.cancelled():
            self.task.result()

    def crash_error(self) -> ProviderCrashed:
        """Return the error for a provider whose task ended while in use."""
        fault = None if self.task.cancelled() else self.task.exception()
        error = ProviderCrashed(f"the provider task ended unexpectedly: {fault!r}")
        error.__cause__ = fault
        return error


class ProviderHolder:
    """Holder of the provider in use, and of the client for cloud calls that controllers share.

    Args:
        make: creates the client for cloud calls, from the first provider.
        on_exchanged: called after a new provider has replaced the old one.
    """

    def __init__(
        self,
        *,
        make: Callable[[Cloud], CloudClient] = CloudClient,
        on_exchanged: Callable[[], None] = lambda: None,
    ) -> None:
        self._make = make
        self._on_exchanged = on_exchanged
        self._log = log.logger("provider")
        self._handle: CloudClient | None = None
        self._current: _OpenProvider | None = None
        self._crashed: asyncio.Future[_OpenProvider] = asyncio.get_running_loop().create_future()
        self._retiring: dict[asyncio.Task[None], _OpenProvider] = {}

    @property
    def handle(self) -> CloudClient:
        """The client for cloud calls; stays the same when the provider is replaced.

        Available after `open`.
        """
        assert self._handle is not None
        return self._handle

    async def open(self, opening: ProviderFactory) -> CloudClient:
        """Open the first provider, and return the client for cloud calls.

        Raises:
            Exception: the error of `opening`.
        """
        self._use(await _open(opening))
        return self.handle

    async def exchange(
        self, opening: ProviderFactory, accept: Callable[[Cloud], Awaitable[None]]
    ) -> None:
        """Open a new provider, and replace the old one unless `accept` raises.

        The old provider is closed in the background, after its in-flight calls.

        Raises:
            Exception: the error of `opening` or `accept`; the old provider stays in use.
        """
        old, new = self._current, await _open(opening)
        try:
            await accept(new.cloud)
            if new.task.done():  # the new provider crashed during `accept`
                raise new.crash_error()
        except BaseException:
            await self._close(new)
            raise
        self._use(new)
        if old is not None:
            task = spawn(self._retire(old), name="provider-drain")
            self._retiring[task] = old
            task.add_done_callback(self._retiring.pop)
        self._on_exchanged()

    async def wait_for_crash(self) -> None:
        """Wait until the task of the provider in use ends.

        Raises:
            ProviderCrashed: the task has ended.
        """
        # The shield keeps the cancellation of a waiter from cancelling the shared future.
        raise (await asyncio.shield(self._crashed)).crash_error()

    async def close(self) -> None:
        """Close the provider in use, and replaced providers, without waiting for their calls."""
        current, self._current = self._current, None
        retiring = dict(self._retiring)
        try:
            await cancel_and_join(*retiring)
            for old in retiring.values():
                if not old.task.done():
                    await self._close(old)
        finally:
            if current is not None:
                await current.close()

    def _use(self, provider: _OpenProvider) -> None:
        def ended(_task: asyncio.Task[None]) -> None:
            # A replaced provider ends as expected; the end of the current one is a crash.
            if provider is self._current and not self._crashed.done():
                self._crashed.set_result(provider)

        self._current = provider
        provider.task.add_done_callback(ended)
        if self._handle is None:
            self._handle = self._make(provider.cloud)
        else:
            self._handle.swap(provider.cloud)

    async def _retire(self, old: _OpenProvider) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self.handle.wait_for_calls(old.cloud)
        await self._close(old)

    async def _close(self, provider: _OpenProvider) -> None:
        """Close a provider that is not in use; log its error instead of raising it."""
        try:
            await provider.close()
        except Exception as error:  # noqa: BLE001 - a provider may fail in any way
            self._log.warning("closing the provider failed", error=str(error))


async def _open(opening: ProviderFactory) -> _OpenProvider:
    ready: asyncio.Future[Cloud] = asyncio.get_running_loop().create_future()
    release = asyncio.Event()
    task = spawn(_own_provider(opening, ready, release), name="provider")
    try:
        waited: set[asyncio.Future[Any]] = {task, ready}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        await cancel_and_join(task)
        raise
    if not ready.done():
        task.result()  # the task ended before the provider was open: raise its error
    return _OpenProvider(cloud=ready.result(), task=task, release=release)


async def _own_provider(
    opening: ProviderFactory, ready: asyncio.Future[Cloud], release: asyncio.Event
) -> None:
    async with opening() as cloud:
        ready.set_result(cloud)
        await release.wait()
