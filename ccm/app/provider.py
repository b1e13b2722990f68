"""The provider: opened however long its cloud takes, held, and exchanged for another one.

What a person has to correct (unknown name, unreadable file, wrong configuration) ends the
process with one message. What passes by itself (the cloud is down, credentials are
refused) is tried again with back-off, and said once at the start and once at the end.

A provider lives in a task of its own, in which it is opened and closed: it may hold a task
group or a cancel scope. With another configuration a new one is opened, which has to answer a
first call before the old one is let go; the old one is closed when its last call has ended.
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
from ccm.base.backoff import Exponential, Streak
from ccm.base.clock import monotonic
from ccm.base.files import Signature, reason
from ccm.base.log import Outage
from ccm.base.tasks import cancel_and_join, leaves, spawn
from ccm.base.throttle import TokenBucket
from ccm.cloud.calls.handle import Handle
from ccm.cloud.calls.responses import incomplete
from ccm.cloud.config import ClientBuilder, Context, EventSink
from ccm.cloud.errors import CloudError, FailedPrecondition, NotFound, Unimplemented, normalized
from ccm.cloud.interface import Cloud, InstancesV2, Inventory
from ccm.cloud.lookup import InstanceLookup, NodeOwnership
from ccm.cloud.registry import Opener, ProviderError
from ccm.cloud.settings import ConfigError
from ccm.model import Node
from ccm.model.cidr import parse_ranges
from ccm.model.names import STATUS_TRUE

OPEN_BACK_OFF = Exponential(base_s=1.0, factor=2.0, cap_s=30.0, jitter=0.2)
"""Pauses between attempts to open the provider."""

SAMPLE = 8
"""Most nodes about which a new provider is asked."""

OPEN_LIMIT_S = 120.0
"""Longest time of one attempt; a cloud that accepts a connection may never answer."""

DRAIN_S = 900.0
"""Longest time that calls of an old provider may still take; that of its longest call."""

CLOSE_S = 30.0
"""Longest time that a provider may take to close before it is cancelled."""

NO_FILE = "no --cloud-config"
"""Where the configuration comes from that nobody gave, for messages."""

Opening = Callable[[], AbstractAsyncContextManager[Cloud]]
"""Opens the provider with the configuration of now."""


class Misconfigured(Exception):
    """A person has to correct something; the message says what. The process ends with 1."""


def misconfigured(error: BaseException) -> Misconfigured | None:
    """The mistake of a person in it, if there is one; a provider's task group may wrap it."""
    return next((leaf for leaf in leaves(error) if isinstance(leaf, Misconfigured)), None)


class Crashed(Exception):
    """The provider ended by itself; its cause says why."""


def context(
    *,
    file: str,
    cluster_name: str,
    clients: ClientBuilder | None,
    **more: Any,
) -> Context:
    """What the provider is opened with; `more` are fields of `Context`.

    Raises:
        Misconfigured: the file cannot be read.
    """
    try:
        content = Path(file).read_bytes() if file else b""
    except OSError as error:
        raise Misconfigured(f"--cloud-config={file} cannot be read: {reason(error)}") from error
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
    """The open provider, without a second attempt.

    Raises:
        Misconfigured: the provider refuses its configuration, or is not written as it has to be.
        Exception: whatever else keeps it from opening.
    """
    async with AsyncExitStack() as stack:
        try:
            # In this task, as it is left here too: a provider may open a task group.
            async with asyncio.timeout(OPEN_LIMIT_S):
                cloud = await stack.enter_async_context(_entered_by(opener, given))
        except Exception as error:
            # No later attempt ends otherwise. A task group of the provider may wrap it.
            for leaf in leaves(error):
                if mistake := _mistake(name, given, leaf):
                    raise Misconfigured(mistake) from leaf
            raise
        fault = _fault(name, cloud)
        if not fault:
            yield cloud
    if fault:  # the provider is closed by now, in good order
        raise Misconfigured(fault)


def _entered_by(opener: Opener, given: Context) -> AbstractAsyncContextManager[Cloud]:
    manager: object = opener(given)
    if not isinstance(manager, AbstractAsyncContextManager):
        raise ProviderError(
            f"it returns a {type(manager).__name__}, no async context manager; decorate "
            "what opens it with @cloud.provider"
        )
    return manager


def _mistake(name: str, given: Context, error: BaseException) -> str:
    """Describe what a person has to correct; empty for an error that may pass by itself."""
    if isinstance(error, ConfigError):
        refused = f"cloud provider {name!r} refuses --cloud-config={given.source}"
        if given.source == NO_FILE:
            refused = f"cloud provider {name!r} needs a configuration, give --cloud-config=FILE"
        return "\n  ".join([f"{refused}:", *error.faults])
    if isinstance(error, ProviderError):
        return f"cloud provider {name!r}: {error}"
    # What contextlib makes of a generator that ends before it yields.
    if isinstance(error, RuntimeError) and isinstance(error.__context__, StopAsyncIteration):
        return f"cloud provider {name!r} ends without a Cloud; it has to yield one on every path"
    return ""


def _fault(name: str, cloud: object) -> str:
    """Describe what a provider yields that cannot be used; empty when all is there."""
    if not isinstance(cloud, Cloud):
        return f"cloud provider {name!r} yields a {type(cloud).__name__}, not a Cloud"
    faults = incomplete(cloud)
    return "\n  ".join([f"cloud provider {name!r} is incomplete:", *faults]) if faults else ""


def handle(options: Options, cloud: Cloud, *, make: Callable[..., Handle] = Handle) -> Handle:
    """The handle to a provider, with the deadline and the rate that flags set.

    Args:
        options: the flags.
        cloud: what the provider yielded.
        make: takes what `Handle` takes.
    """
    rate = options.cloud_rate
    return make(
        cloud,
        cluster_name=options.cluster_name,
        deadline_s=options.cloud_call_timeout.total_seconds() or None,
        limiter=TokenBucket(qps=rate[0], burst=rate[1]) if rate else None,
    )


class ConfiguredProvider:
    """The provider that the flags name, with its configuration of now.

    Args:
        options: the flags.
        opener: opens it.
        clients: makes API clients for it.

    Opening it raises Misconfigured also where it has no cluster ID and the flags want one.

    Attributes:
        followed: the files that it follows, and what they looked like before they were read.
        events: where its events go; None = nowhere yet.
    """

    def __init__(self, options: Options, opener: Opener, clients: ClientBuilder) -> None:
        self.followed: dict[Path, Signature] = {}
        self.events: EventSink | None = None
        self._options = options
        self._opener = opener
        self._clients = clients

    @asynccontextmanager
    async def opened(
        self, told: Callable[[Exception], object] = lambda _error: None
    ) -> AsyncIterator[Cloud]:
        """The open provider, however long its cloud takes; told of each attempt that failed.

        Raises:
            Misconfigured: a person has to correct something.
        """
        outage = Outage(
            log.logger("provider", provider=self._options.cloud_provider),
            begins="provider cannot be opened, retrying",
            ends="provider opened",
        )
        streak = Streak(policy=OPEN_BACK_OFF, rng=random.Random())
        async with AsyncExitStack() as stack:
            while True:
                try:
                    cloud = await stack.enter_async_context(self.opened_once())
                    break
                except Exception as error:  # noqa: BLE001 - a provider may fail in any way
                    if refusal := misconfigured(error):
                        # Not from the group it came in: its own cause says what is wrong.
                        raise refusal from refusal.__cause__
                    delay, fault = streak.next(monotonic()), normalized(error)
                    outage.goes_on(error=str(fault))
                    told(fault)
                await asyncio.sleep(delay)
            outage.is_over(attempt=streak.failures + 1)
            yield cloud

    @asynccontextmanager
    async def opened_once(self) -> AsyncIterator[Cloud]:
        """The open provider, without a second attempt; see the function of that name."""
        routed = self._options.cluster_cidr.strip() if self._options.configure_cloud_routes else ""
        given = context(
            file=self._options.cloud_config,
            cluster_name=self._options.cluster_name,
            clients=self._clients,
            followed=self.followed,
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
            f"cloud provider {cloud.name!r} cannot tell this cluster's objects from others "
            "(no cluster ID)"
        )
        if not self._options.allow_untagged_cloud:
            raise Misconfigured(f"{detail}; give it one, or pass --allow-untagged-cloud")
        log.logger("daemon").warning("cloud has no cluster ID", error=detail)


async def answers(cloud: Cloud, node: Node | None) -> None:
    """Make a first call that changes nothing; raises CloudError if the cloud does not answer.

    Args:
        cloud: what the provider yielded.
        node: any node, for providers that list nothing; None = do without.
    """
    handle = Handle(cloud)
    with suppress(NotFound, Unimplemented):
        if cloud.inventory is not None:
            await handle.call(Inventory.list_instances)
        elif cloud.instances is not None and node is not None:
            await handle.call(InstancesV2.instance_exists, node)


async def knows_nodes(
    new: Cloud, old: Handle, nodes: Sequence[Node], *, own_nodes: str = ""
) -> None:
    """Refuse a provider that knows none of the nodes that the one in use knows.

    Some nodes are asked about. Where the one in use cannot say, as with credentials that have
    expired, a node that is ready speaks for itself.

    Raises:
        CloudError: the new provider does not know the nodes, or does not answer.
    """
    before = NodeOwnership.at(old.cloud, own_nodes)
    after = NodeOwnership.at(new, own_nodes)
    ours = [node for node in nodes if node.provider_id or node.uid in old.confirmed]
    ours = [node for node in ours if not before.is_foreign(node)]
    # Those that are ready have an instance, whatever a cloud says.
    asked = sorted(random.sample(ours, len(ours)), key=lambda node: not _is_ready(node))[:SAMPLE]
    asked_new, asked_old = InstanceLookup(Handle(new)), InstanceLookup(old)
    with suppress(Unimplemented):
        for node in asked:
            # No cloud is asked about a node of another one; it does not know that either.
            if not after.is_foreign(node) and (await asked_new.state(node)).exists:
                return
        for node in asked:
            try:
                is_known = (await asked_old.state(node)).exists
            except CloudError:
                is_known = _is_ready(node)
            if is_known:
                names = ", ".join(sorted(each.name for each in asked))
                raise FailedPrecondition(
                    f"with this configuration the cloud knows none of the nodes {names}; are its "
                    "credentials those of another project or region? A restart would use it all "
                    "the same"
                )


def _is_ready(node: Node) -> bool:
    return node.ready == STATUS_TRUE


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenProvider:
    """A provider, the task that opened it and will close it, and what tells that to."""

    cloud: Cloud
    task: asyncio.Task[None]
    release: asyncio.Event

    async def close(self) -> None:
        """Close it; raises whatever closing raises, TimeoutError if it takes too long."""
        self.release.set()
        try:
            ended, _ = await asyncio.wait({self.task}, timeout=CLOSE_S)
        finally:
            await cancel_and_join(self.task)
        if not ended:
            raise TimeoutError(f"the provider did not close within {CLOSE_S:g} s")
        if not self.task.cancelled():
            self.task.result()

    def crash(self) -> Crashed:
        """How it ended by itself."""
        fault = None if self.task.cancelled() else self.task.exception()
        found = Crashed(f"the provider ended by itself: {fault!r}")
        found.__cause__ = fault
        return found


class ProviderHolder:
    """Holds the provider in use, and the handle through which everybody reaches it.

    Args:
        make: the handle to the first provider.
        exchanged: called when another provider has taken over.
    """

    def __init__(
        self,
        *,
        make: Callable[[Cloud], Handle] = Handle,
        exchanged: Callable[[], None] = lambda: None,
    ) -> None:
        self._make = make
        self._exchanged = exchanged
        self._log = log.logger("provider")
        self._handle: Handle | None = None
        self._current: _OpenProvider | None = None
        self._crashed: asyncio.Future[_OpenProvider] = asyncio.get_running_loop().create_future()
        self._retiring: dict[asyncio.Task[None], _OpenProvider] = {}

    @property
    def handle(self) -> Handle:
        """The one handle, whichever provider is behind it; there is none before `open`."""
        assert self._handle is not None
        return self._handle

    async def open(self, opening: Opening) -> Handle:
        """Open the first provider; raises whatever opening raises."""
        self._use(await _opened(opening))
        return self.handle

    async def exchange(self, opening: Opening, accept: Callable[[Cloud], Awaitable[None]]) -> None:
        """Open another provider, and use it once `accept` has not raised.

        Raises:
            Exception: whatever opening or accepting raised; the old provider stays in use.
        """
        old, new = self._current, await _opened(opening)
        try:
            await accept(new.cloud)
            if new.task.done():
                raise new.crash()
        except BaseException:
            await self._close(new)
            raise
        self._use(new)
        if old is not None:
            task = spawn(self._retire(old), name="provider-drain")
            self._retiring[task] = old
            task.add_done_callback(self._retiring.pop)
        self._exchanged()

    async def until_crash(self) -> None:
        """Wait for a provider that ends by itself while it is in use.

        Raises:
            Crashed: it did.
        """
        raise (await asyncio.shield(self._crashed)).crash()

    async def close(self) -> None:
        """Close the provider in use, and those that are not closed yet."""
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
                await self.handle.ended(old.cloud)
        await self._close(old)

    async def _close(self, provider: _OpenProvider) -> None:
        """Close one that is not in use."""
        try:
            await provider.close()
        except Exception as error:  # noqa: BLE001 - a provider may fail in any way
            self._log.warning("closing the provider failed", error=str(error))


async def _opened(opening: Opening) -> _OpenProvider:
    ready: asyncio.Future[Cloud] = asyncio.get_running_loop().create_future()
    release = asyncio.Event()
    task = spawn(_hold(opening, ready, release), name="provider")
    try:
        waited: set[asyncio.Future[Any]] = {task, ready}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        await cancel_and_join(task)
        raise
    if not ready.done():
        task.result()
    return _OpenProvider(cloud=ready.result(), task=task, release=release)


async def _hold(opening: Opening, ready: asyncio.Future[Cloud], release: asyncio.Event) -> None:
    async with opening() as cloud:
        ready.set_result(cloud)
        await release.wait()
