"""The guarded calls of the service controller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ccm.cloud import errors
from ccm.cloud.guarded import Guarded, Observer, offered
from ccm.cloud.interface import Cloud, LoadBalancer, LoadBalancerDigests
from ccm.cloud.types import LoadBalancerRecord, Status
from ccm.model import Node, Service

T = TypeVar("T")


class ServiceCalls:
    """The calls about load balancers; each mirrors a method of the interfaces.

    Args:
        guard: the handle all calls go through.
        cluster_name: name of the cluster towards the cloud.
        observer: told about each call, for metrics of the controller.
    """

    def __init__(
        self, guard: Guarded, *, cluster_name: str, observer: Observer | None = None
    ) -> None:
        self._guard = guard
        self._cluster_name = cluster_name
        self._observer = observer

    @property
    def cloud(self) -> Cloud:
        """What the provider offers now."""
        return self._guard.cloud

    @property
    def has_digests(self) -> bool:
        """Whether the provider offers `LoadBalancerDigests`."""
        return isinstance(self.cloud.load_balancer, LoadBalancerDigests)

    def name(self, service: Service) -> str:
        """See `LoadBalancer.get_load_balancer_name`. Raises CloudError."""
        balancer = _balancer(self.cloud)
        return self._computed(lambda: balancer.get_load_balancer_name(self._cluster_name, service))

    def digest(self, service: Service, nodes: Sequence[Node]) -> str:
        """See `LoadBalancerDigests.load_balancer_digest`. Raises CloudError."""
        digests = _digests(self.cloud)
        return self._computed(
            lambda: digests.load_balancer_digest(self._cluster_name, service, nodes)
        )

    async def get(self, service: Service) -> Status | None:
        """See `LoadBalancer.get_load_balancer`."""
        return await self._call(
            "get_load_balancer",
            lambda cloud: _balancer(cloud).get_load_balancer(self._cluster_name, service),
        )

    async def ensure(self, service: Service, nodes: Sequence[Node]) -> Status:
        """See `LoadBalancer.ensure_load_balancer`."""

        async def invoke(cloud: Cloud) -> Status:
            answer: object = await _balancer(cloud).ensure_load_balancer(
                self._cluster_name, service, nodes
            )
            # A forgotten `return` must not empty the Service's status.
            if not isinstance(answer, Status):
                raise errors.Internal(f"ensure_load_balancer answered {answer!r}, not a Status")
            return answer

        return await self._call("ensure_load_balancer", invoke)

    async def update(self, service: Service, nodes: Sequence[Node]) -> None:
        """See `LoadBalancer.update_load_balancer`."""
        await self._call(
            "update_load_balancer",
            lambda cloud: _balancer(cloud).update_load_balancer(self._cluster_name, service, nodes),
        )

    async def ensure_deleted(self, service: Service) -> None:
        """See `LoadBalancer.ensure_load_balancer_deleted`."""
        await self._call(
            "ensure_load_balancer_deleted",
            lambda cloud: _balancer(cloud).ensure_load_balancer_deleted(
                self._cluster_name, service
            ),
        )

    async def list(self) -> Sequence[LoadBalancerRecord]:
        """See `LoadBalancerDigests.list_load_balancers`."""

        async def invoke(cloud: Cloud) -> Sequence[LoadBalancerRecord]:
            answer: object = await _digests(cloud).list_load_balancers(self._cluster_name)
            if not isinstance(answer, Sequence):
                raise errors.Internal(f"list_load_balancers answered {answer!r}, not a sequence")
            return answer

        return await self._call("list_load_balancers", invoke)

    async def _call(self, operation: str, invoke: Callable[[Cloud], Awaitable[T]]) -> T:
        return await self._guard.call(operation, invoke, observer=self._observer)

    @staticmethod
    def _computed(compute: Callable[[], str]) -> str:
        """An answer that costs no call; whatever goes wrong is a CloudError."""
        try:
            return compute()
        except Exception as error:
            found = errors.normalized(error)
            if found is error:
                raise
            raise found from found.__cause__


def _balancer(cloud: Cloud) -> LoadBalancer:
    return offered(cloud.load_balancer, "load balancers")


def _digests(cloud: Cloud) -> LoadBalancerDigests:
    balancer = _balancer(cloud)
    if not isinstance(balancer, LoadBalancerDigests):
        raise errors.Unimplemented("this cloud does not offer digests of load balancers")
    return balancer
