"""Wraps any provider once: deadline, rate limit, metrics and error normalising per call.

Controllers hold a `Guarded`, never the provider's own object. The provider behind it can
be exchanged with `swap` while controllers run, because every call looks it up anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from ccm.base import metrics
from ccm.base.clock import SYSTEM, Clock
from ccm.base.throttle import Limiter, Unlimited, bucket
from ccm.cloud import answers, errors
from ccm.cloud.interface import Cloud, Instances, InstancesV2, Inventory, Zones
from ccm.cloud.interface import InstanceStates as States
from ccm.cloud.types import InstanceListing, InstanceMetadata, InstanceState, Zone
from ccm.model import Node, NodeAddress

T = TypeVar("T")
Observer = Callable[[str, str], None]
"""Told (operation, outcome) after each call."""

READ_DEADLINE_S = 60.0
"""Default deadline of a call that only asks."""

DEADLINES_S: Mapping[str, float] = {
    "ensure_load_balancer": 900.0,
    "update_load_balancer": 900.0,
    "ensure_load_balancer_deleted": 900.0,
    "list_routes": 300.0,
    "create_route": 300.0,
    "delete_route": 300.0,
    # A listing is many requests under one call.
    "list_instances": 300.0,
    "list_load_balancers": 300.0,
}
"""Deadlines of the calls that change things or take long; all others: `READ_DEADLINE_S`."""

_CALLS = metrics.counter(
    "ccm_cloud_calls",
    "Calls to the cloud provider by operation and outcome.",
    ["provider", "operation", "outcome"],
)
_LATENCY = metrics.histogram(
    "ccm_cloud_call_duration_seconds",
    "Time a call to the cloud provider took, without waiting for the rate limit.",
    ["provider", "operation"],
    buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 300, 900),
)
_WAIT = metrics.histogram(
    "ccm_cloud_rate_limiter_duration_seconds",
    "Time a call to the cloud provider waited for the rate limit.",
    ["provider", "operation"],
    buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60),
)

OUTCOMES: Mapping[type[errors.CloudError], str] = {
    errors.NotFound: "not_found",
    errors.Unimplemented: "not_implemented",
    errors.ImplementedElsewhere: "implemented_elsewhere",
    errors.RetryAfter: "retry_after",
    errors.DeadlineExceeded: "deadline_exceeded",
    errors.ResourceExhausted: "resource_exhausted",
    errors.Unauthenticated: "unauthenticated",
    errors.PermissionDenied: "permission_denied",
    errors.Unavailable: "unavailable",
}
"""Error class -> value of the metric label `outcome`; any other error is `error`."""


class Guarded:
    """The controllers' handle to one cloud.

    Args:
        cloud: what the provider yielded.
        read_deadline_s: overrides `READ_DEADLINE_S`; the provider's own deadlines win.
        limiter: overrides the rate that the provider declares.
        clock: where time comes from.
    """

    def __init__(
        self,
        cloud: Cloud,
        *,
        read_deadline_s: float = READ_DEADLINE_S,
        limiter: Limiter | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._cloud = cloud
        self._read_deadline_s = read_deadline_s
        self._forced_limiter = limiter
        self._clock = clock
        self._limiter = self._limiter_for(cloud)
        self._under_way: Counter[int] = Counter()

    @property
    def cloud(self) -> Cloud:
        """What the provider offers now; ask it for names and capabilities, never call it."""
        return self._cloud

    def swap(self, cloud: Cloud) -> None:
        """Use another provider object from the next call on; calls under way finish."""
        self._cloud = cloud
        self._limiter = self._limiter_for(cloud)

    def calls_under_way(self, cloud: Cloud) -> int:
        """How many calls a provider object, perhaps one swapped out, has not answered yet."""
        return self._under_way[id(cloud)]

    async def call(
        self,
        operation: str,
        invoke: Callable[[Cloud], Awaitable[T]],
        *,
        observer: Observer | None = None,
    ) -> T:
        """Make one call under all protections.

        Raises:
            CloudError: what the provider raised, normalised; DeadlineExceeded when it took
                too long.
        """
        provider = self._cloud.name
        _WAIT.labels(provider, operation).observe(await self._limiter.acquire())
        started = self._clock.monotonic()
        outcome = "canceled"
        try:
            result = await self._bounded(operation, invoke)
            outcome = "success"
        except errors.CloudError as error:
            outcome = _outcome(error)
            raise
        else:
            return result
        finally:
            _CALLS.labels(provider, operation, outcome).inc()
            _LATENCY.labels(provider, operation).observe(self._clock.monotonic() - started)
            if observer is not None:
                observer(operation, outcome)

    async def _counted(self, invoke: Callable[[Cloud], Awaitable[T]]) -> T:
        cloud = self._cloud
        self._under_way[id(cloud)] += 1
        try:
            return await invoke(cloud)
        finally:
            self._under_way[id(cloud)] -= 1
            if not self._under_way[id(cloud)]:
                del self._under_way[id(cloud)]

    async def _bounded(self, operation: str, invoke: Callable[[Cloud], Awaitable[T]]) -> T:
        deadline_s = self._deadline_s(operation)
        cancelled_before = _cancellations()
        fault: BaseException | None = None
        try:
            async with asyncio.timeout(deadline_s) as scope:
                result = await self._counted(invoke)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - vendor SDKs raise SystemExit and worse
            fault = error
        # A provider may swallow its cancellation. Our worker must end all the same, and what
        # was answered after the deadline is no answer: "gone" would delete a node.
        if _cancellations() > cancelled_before:
            raise asyncio.CancelledError from fault
        if scope.expired():
            text = f"{operation} took longer than {deadline_s:g} s"
            raise errors.DeadlineExceeded(text) from fault
        if fault is not None:
            found = _normalized(operation, fault)
            # An error found among the causes must not become the cause of its own cause.
            raise found from found.__cause__
        return result

    def _deadline_s(self, operation: str) -> float:
        own = self._cloud.limits.deadlines_s.get(operation)
        if own is not None:
            return own
        return DEADLINES_S.get(operation, self._read_deadline_s)

    def _limiter_for(self, cloud: Cloud) -> Limiter:
        if self._forced_limiter is not None:
            return self._forced_limiter
        rate = cloud.limits.rate
        return bucket(rate.qps, rate.burst, self._clock) if rate else Unlimited()


class NodeCalls:
    """The guarded calls of the node controllers; each mirrors a method of the interfaces.

    Args:
        guard: the handle all calls go through.
        observer: told about each call, for metrics of one controller.
    """

    def __init__(self, guard: Guarded, observer: Observer | None = None) -> None:
        self._guard = guard
        self._observer = observer

    @property
    def cloud(self) -> Cloud:
        """What the provider offers now."""
        return self._guard.cloud

    async def _ask(
        self,
        operation: str,
        invoke: Callable[[Cloud], Awaitable[object]],
        check: Callable[[object], T],
    ) -> T:
        async def checked(cloud: Cloud) -> T:
            try:
                return check(await invoke(cloud))
            except answers.Wrong as wrong:
                raise errors.Internal(f"{operation} answered {wrong}") from None

        return await self._guard.call(operation, checked, observer=self._observer)

    async def instance_exists(self, node: Node) -> bool:
        """See `InstancesV2.instance_exists`."""
        return await self._ask(
            "instance_exists",
            lambda c: _v2(c).instance_exists(node),
            answers.decision,
        )

    async def instance_shutdown(self, node: Node) -> bool:
        """See `InstancesV2.instance_shutdown`."""
        return await self._ask(
            "instance_shutdown",
            lambda c: _v2(c).instance_shutdown(node),
            answers.decision,
        )

    async def instance_metadata(self, node: Node) -> InstanceMetadata | None:
        """See `InstancesV2.instance_metadata`."""
        return await self._ask(
            "instance_metadata",
            lambda c: _v2(c).instance_metadata(node),
            answers.metadata,
        )

    async def instance_state(self, node: Node) -> InstanceState:
        """See `InstanceStates.instance_state`."""
        return await self._ask(
            "instance_state",
            lambda c: _states(c).instance_state(node),
            answers.state,
        )

    async def list_instances(self) -> InstanceListing:
        """See `Inventory.list_instances`."""
        return await self._ask(
            "list_instances",
            lambda c: _inventory(c).list_instances(),
            answers.listing,
        )

    async def node_addresses(self, node_name: str) -> Sequence[NodeAddress]:
        """See `Instances.node_addresses`."""
        return await self._ask(
            "node_addresses",
            lambda c: _v1(c).node_addresses(node_name),
            answers.addresses,
        )

    async def node_addresses_by_provider_id(self, provider_id: str) -> Sequence[NodeAddress]:
        """See `Instances.node_addresses_by_provider_id`."""
        return await self._ask(
            "node_addresses_by_provider_id",
            lambda c: _v1(c).node_addresses_by_provider_id(provider_id),
            answers.addresses,
        )

    async def instance_id(self, node_name: str) -> str:
        """See `Instances.instance_id`."""
        return await self._ask(
            "instance_id",
            lambda c: _v1(c).instance_id(node_name),
            answers.text,
        )

    async def instance_type(self, node_name: str) -> str:
        """See `Instances.instance_type`."""
        return await self._ask(
            "instance_type",
            lambda c: _v1(c).instance_type(node_name),
            answers.text,
        )

    async def instance_type_by_provider_id(self, provider_id: str) -> str:
        """See `Instances.instance_type_by_provider_id`."""
        return await self._ask(
            "instance_type_by_provider_id",
            lambda c: _v1(c).instance_type_by_provider_id(provider_id),
            answers.text,
        )

    async def instance_exists_by_provider_id(self, provider_id: str) -> bool:
        """See `Instances.instance_exists_by_provider_id`."""
        return await self._ask(
            "instance_exists_by_provider_id",
            lambda c: _v1(c).instance_exists_by_provider_id(provider_id),
            answers.decision,
        )

    async def instance_shutdown_by_provider_id(self, provider_id: str) -> bool:
        """See `Instances.instance_shutdown_by_provider_id`."""
        return await self._ask(
            "instance_shutdown_by_provider_id",
            lambda c: _v1(c).instance_shutdown_by_provider_id(provider_id),
            answers.decision,
        )

    async def get_zone_by_provider_id(self, provider_id: str) -> Zone:
        """See `Zones.get_zone_by_provider_id`."""
        return await self._ask(
            "get_zone_by_provider_id",
            lambda c: _zones(c).get_zone_by_provider_id(provider_id),
            answers.zone,
        )

    async def get_zone_by_node_name(self, node_name: str) -> Zone:
        """See `Zones.get_zone_by_node_name`."""
        return await self._ask(
            "get_zone_by_node_name",
            lambda c: _zones(c).get_zone_by_node_name(node_name),
            answers.zone,
        )


def _cancellations() -> int:
    """How often the current task was asked to end."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _normalized(operation: str, fault: BaseException) -> errors.CloudError:
    if not isinstance(fault, asyncio.CancelledError):
        return errors.normalized(fault)
    # Something inside the provider was cancelled; passed on, it would end our worker.
    found = errors.Canceled(f"{operation} was cancelled inside the provider")
    found.__cause__ = fault
    return found


def offered(capability: T | None, name: str) -> T:
    """The capability; raises Unimplemented where the cloud does not offer it."""
    if capability is None:
        raise errors.Unimplemented(f"this cloud does not offer {name}")
    return capability


def _v2(cloud: Cloud) -> InstancesV2:
    return offered(cloud.instances, "instances")


def _v1(cloud: Cloud) -> Instances:
    return offered(cloud.instances_v1, "instances by provider ID")


def _zones(cloud: Cloud) -> Zones:
    return offered(cloud.zones, "zones")


def _inventory(cloud: Cloud) -> Inventory:
    return offered(cloud.inventory, "an inventory")


def _states(cloud: Cloud) -> States:
    instances = _v2(cloud)
    if not isinstance(instances, States):
        raise errors.Unimplemented("this cloud does not offer instance states")
    return instances


def _outcome(error: errors.CloudError) -> str:
    for base in type(error).__mro__:
        if base in OUTCOMES:
            return OUTCOMES[base]
    return "error"
