"""The guarded calls of the service controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ccm.cloud import answers, errors
from ccm.cloud.calls import ClusterCalls, offered
from ccm.cloud.interface import Cloud, LoadBalancer, LoadBalancerDigests
from ccm.cloud.types import LoadBalancerRecord, Status
from ccm.model import Node, Service


class ServiceCalls(ClusterCalls):
    """The calls about load balancers; each mirrors a method of the interfaces."""

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
        return await self._ask(
            "get_load_balancer",
            lambda cloud: _balancer(cloud).get_load_balancer(self._cluster_name, service),
            answers.status_or_none,
            subject=service.uid,
        )

    async def ensure(self, service: Service, nodes: Sequence[Node]) -> Status:
        """See `LoadBalancer.ensure_load_balancer`."""
        return await self._ask(
            "ensure_load_balancer",
            lambda cloud: _balancer(cloud).ensure_load_balancer(self._cluster_name, service, nodes),
            answers.status,
            subject=service.uid,
        )

    async def update(self, service: Service, nodes: Sequence[Node]) -> None:
        """See `LoadBalancer.update_load_balancer`."""
        await self._ask(
            "update_load_balancer",
            lambda cloud: _balancer(cloud).update_load_balancer(self._cluster_name, service, nodes),
            answers.nothing,
            subject=service.uid,
        )

    async def ensure_deleted(self, service: Service) -> None:
        """See `LoadBalancer.ensure_load_balancer_deleted`."""
        await self._ask(
            "ensure_load_balancer_deleted",
            lambda cloud: _balancer(cloud).ensure_load_balancer_deleted(
                self._cluster_name, service
            ),
            answers.nothing,
            subject=service.uid,
        )

    async def list(self) -> Sequence[LoadBalancerRecord]:
        """See `LoadBalancerDigests.list_load_balancers`."""
        return await self._ask(
            "list_load_balancers",
            lambda cloud: _digests(cloud).list_load_balancers(self._cluster_name),
            answers.balancers,
        )

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
