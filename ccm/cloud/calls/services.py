"""The calls of the service controller."""

from __future__ import annotations

from collections.abc import Sequence

from ccm.cloud.calls.handle import Handle
from ccm.cloud.interface import Cloud, LoadBalancer, LoadBalancerDigests
from ccm.cloud.types import LoadBalancerRecord, Status
from ccm.model import Node, Service


class ServiceCalls:
    """`LoadBalancer` and `LoadBalancerDigests` in the name of one cluster; see there."""

    def __init__(self, handle: Handle, *, cluster_name: str) -> None:
        self._handle = handle
        self._cluster = cluster_name

    @property
    def cloud(self) -> Cloud:
        """What the provider offers now."""
        return self._handle.cloud

    @property
    def has_digests(self) -> bool:
        """Whether the provider offers `LoadBalancerDigests`."""
        return self._handle.offers(LoadBalancerDigests)

    def name(self, service: Service) -> str:
        """See `LoadBalancer.get_load_balancer_name`."""
        return self._handle.compute(LoadBalancer.get_load_balancer_name, self._cluster, service)

    def digest(self, service: Service, nodes: Sequence[Node]) -> str:
        """See `LoadBalancerDigests.load_balancer_digest`."""
        compute = LoadBalancerDigests.load_balancer_digest
        return self._handle.compute(compute, self._cluster, service, nodes)

    async def get(self, service: Service) -> Status | None:
        """See `LoadBalancer.get_load_balancer`."""
        return await self._handle.call(LoadBalancer.get_load_balancer, self._cluster, service)

    async def ensure(self, service: Service, nodes: Sequence[Node]) -> Status:
        """See `LoadBalancer.ensure_load_balancer`."""
        change = LoadBalancer.ensure_load_balancer
        return await self._handle.call(change, self._cluster, service, nodes)

    async def update(self, service: Service, nodes: Sequence[Node]) -> None:
        """See `LoadBalancer.update_load_balancer`."""
        change = LoadBalancer.update_load_balancer
        await self._handle.call(change, self._cluster, service, nodes)

    async def ensure_deleted(self, service: Service) -> None:
        """See `LoadBalancer.ensure_load_balancer_deleted`."""
        change = LoadBalancer.ensure_load_balancer_deleted
        await self._handle.call(change, self._cluster, service)

    async def list(self) -> Sequence[LoadBalancerRecord]:
        """See `LoadBalancerDigests.list_load_balancers`."""
        return await self._handle.call(LoadBalancerDigests.list_load_balancers, self._cluster)
