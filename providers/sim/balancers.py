"""Load balancers of the simulated cloud, over its client.

A load balancer is found by its name, which follows from the Service's UID; the mark of the
cluster keeps those of others out of reach. Every step first looks at what is there, so
whatever a call that was cut short left behind is adopted by the next. While the cloud works
on a load balancer, `RetryAfter` says for how long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from ccm import cloud

from . import client, recipes

ON_ITS_WAY = ("provisioning", "updating")
"""States in which the cloud takes no change; any state we do not know takes them."""

FAILED = "error"

SHORTEST_WAIT_S = 0.1
LONGEST_WAIT_S = 30.0
"""Bounds of the wait that the cloud announces."""


class SimBalancers:
    """`LoadBalancer`, `LoadBalancerDigests` and `LoadBalancerRemoval` in one."""

    def __init__(self, api: client.Client) -> None:
        self._api = api

    def get_load_balancer_name(self, cluster_name: str, service: cloud.Service) -> str:  # noqa: ARG002 - the UID says enough
        """`a` and the UID of the Service."""
        return cloud.default_load_balancer_name(service)

    async def get_load_balancer(
        self, cluster_name: str, service: cloud.Service
    ) -> cloud.Status | None:
        """Its status, without addresses while it is new; one request."""
        found = await self._find(cluster_name, service)
        return None if found is None else _status(found)

    async def ensure_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> cloud.Status:
        """One request to find it, and one for each step it needs: order, change, members.

        Raises:
            InvalidArgument: the Service asks for something the cloud does not have.
            RetryAfter: the cloud works on it.
            Aborted: the cloud failed to make it, or refused members and the others are there; the
                message has the cloud's reason.
        """
        recipe = recipes.wanted(service)
        found = await self._find(cluster_name, service)
        if found is None:
            found = await self._create(cluster_name, service, recipe)
        _check_usable(found)
        if recipes.held(found) != recipe:
            found = await self._api.change_balancer(found.id, recipe)
            _check_usable(found)
        found = await self._with_members(found, recipes.members(nodes, recipe.families))
        return _status(found)

    async def update_load_balancer(
        self, cluster_name: str, service: cloud.Service, nodes: Sequence[cloud.Node]
    ) -> None:
        """One request to find it, another if the members differ.

        Raises:
            NotFound: there is none.
            RetryAfter: the cloud works on it.
            Aborted: the cloud refused members; the others are as they should be.
        """
        found = await self._find(cluster_name, service)
        if found is None:
            raise cloud.NotFound(f"no load balancer for {service.key}")
        _check_usable(found)
        await self._with_members(found, recipes.members(nodes, found.families))

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: cloud.Service) -> None:
        """One request to find it, another to delete it.

        Raises:
            FailedPrecondition: it is protected from deletion.
        """
        name = self.get_load_balancer_name(cluster_name, service)
        await self.delete_load_balancer(cluster_name, name)

    async def delete_load_balancer(self, cluster_name: str, name: str) -> None:
        """One request to find it, another to delete it.

        Raises:
            FailedPrecondition: it is protected from deletion.
        """
        found = await self._api.balancer(name)
        if found is not None and found.cluster == cluster_name:
            with contextlib.suppress(cloud.NotFound):
                await self._api.delete_balancer(found.id)

    async def list_load_balancers(self, cluster_name: str) -> Sequence[cloud.LoadBalancerRecord]:
        """All of this cluster; one request for each page of 500."""
        return [
            cloud.LoadBalancerRecord(name=one.name, digest=_digest(one), status=_status(one))
            for one in await self._api.balancers(cluster_name)
        ]

    def load_balancer_digest(
        self,
        cluster_name: str,  # noqa: ARG002 - listings are of one cluster
        service: cloud.Service,
        nodes: Sequence[cloud.Node],
    ) -> str:
        """The digest of what `ensure_load_balancer` would make."""
        recipe = recipes.wanted(service)
        return recipes.digest(recipe, recipes.members(nodes, recipe.families))

    async def _find(self, cluster_name: str, service: cloud.Service) -> client.Balancer | None:
        name = self.get_load_balancer_name(cluster_name, service)
        found = await self._api.balancer(name)
        return found if found is not None and found.cluster == cluster_name else None

    async def _create(
        self, cluster_name: str, service: cloud.Service, recipe: client.Recipe
    ) -> client.Balancer:
        name = self.get_load_balancer_name(cluster_name, service)
        order = client.Order(**msgspec.structs.asdict(recipe), name=name, cluster=cluster_name)
        try:
            return await self._api.create_balancer(order)
        except cloud.AlreadyExists as error:
            # Ordered meanwhile by a call whose answer was lost, or by another cluster.
            found = await self._find(cluster_name, service)
            if found is None:
                raise cloud.FailedPrecondition(
                    f"load balancer {name} belongs to another cluster"
                ) from error
            return found

    async def _with_members(
        self, balancer: client.Balancer, members: Sequence[str]
    ) -> client.Balancer:
        if sorted(balancer.members) == sorted(members):
            return balancer
        try:
            changed = await self._api.set_members(balancer.id, members)
        except cloud.InvalidArgument as error:
            good = [one for one in members if recipes.is_address(one)]
            if len(good) == len(members):
                raise
            served = await self._with_members(balancer, good)
            raise cloud.Aborted(f"members refused: {error}").carrying(_status(served)) from error
        _check_usable(changed)
        return changed


def _check_usable(balancer: client.Balancer) -> None:
    """Raise what follows from a state that takes no changes."""
    if balancer.state == FAILED:
        raise cloud.Aborted(
            f"load balancer {balancer.name} failed: {balancer.reason or 'no reason'}"
        )
    if balancer.state in ON_ITS_WAY:
        raise cloud.RetryAfter(
            f"load balancer {balancer.name} is {balancer.state}",
            seconds=min(max(balancer.ready_in_s, SHORTEST_WAIT_S), LONGEST_WAIT_S),
        )


def _status(balancer: client.Balancer) -> cloud.Status:
    if balancer.state == "provisioning":
        return cloud.Status()
    return cloud.Status(ingress=tuple(cloud.Ingress(ip=one.ip) for one in balancer.ingress))


def _digest(balancer: client.Balancer) -> str:
    """Of what the cloud holds; empty for one that is not finished or damaged."""
    if balancer.state == FAILED or balancer.state in ON_ITS_WAY:
        return ""
    return recipes.digest(recipes.held(balancer), balancer.members)
