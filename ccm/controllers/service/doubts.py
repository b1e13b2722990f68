"""Whether it is known which nodes may be members: some cannot be decoded, are missing or unfit.

A load balancer without members serves no client. So nodes that a new list merely lacks stay members
while they are many: an API server restored from a backup, or one that lists nothing, has deleted
no node. Nodes that are not Ready, where that counts, stay for a while likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ccm.base import clock, log
from ccm.base.log import Outage
from ccm.controllers.service.nodes import Members, Pool, are_known
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference, names
from ccm.runtime.controller import Pass
from ccm.runtime.deletions import ALLOW, DOUBT_S, Holds, MassDeletionGuard, is_mass

REASON = "nodes_missing"
"""Why they stay, as metrics name it."""

LOOK_S = 10.0
"""Time between two looks at those that are missing."""

LONGEST_S = 1800.0
"""How long they stay members while other nodes are there."""


class Doubts:
    """What makes it doubtful who is a member.

    Args:
        members: told of every node.
        nodes: the shared cache of nodes.
        holds: where it is shown that members stay.
        guard: says whether those do that are missing.
        about: what that is told about.
        again: asks for another look at the members.
    """

    def __init__(
        self,
        members: Members,
        nodes: Informer[Node],
        *,
        holds: Holds,
        guard: MassDeletionGuard,
        about: ObjectReference,
        again: Callable[[], object],
    ) -> None:
        self._members = members
        self._nodes = nodes
        self._holds = holds
        self._guard = guard
        self._about = about
        self._again = again
        self.look = Pass(work=self._look, period_s=LOOK_S, at_once=False)
        self._deleted: set[str] = set()
        self._missing_since = math.inf
        logger = log.logger(names.COMPONENT_SERVICE)
        self._unfit = Outage(
            logger,
            begins="nodes that are not ready stay members of load balancers, too many are at once",
            ends="members of load balancers are ready again",
        )
        self._undecodable = Outage(
            logger,
            begins="members of load balancers stay as they are, too many nodes cannot be decoded",
            ends="enough nodes can be decoded again to change members",
        )

    def seen_deleted(self, node: Node) -> None:
        """The node that is gone next was deleted."""
        self._deleted.add(node.name)

    def gone(self, name: str) -> None:
        """A node is not there any more."""
        if name in self._deleted:
            self._deleted.discard(name)
            self._members.remove(name)
            return
        now = clock.monotonic()
        self._members.miss(name)
        self._missing_since = min(self._missing_since, now)
        self._guard.missing(now)

    def came(self, node: Node) -> None:
        """A node is there, as it was or another."""
        if node.name in self._members.missing:
            self._guard.back(clock.monotonic())
        self._members.put(node)

    def settle(self) -> None:
        """Let those that are missing or unfit be members no more, unless they are too many."""
        missing, now = len(self._members.missing), clock.monotonic()
        stay = [pool for pool in self._members.pools if _unfit_stay(pool, now)]
        if not stay:
            self._unfit.is_over()
        else:
            self._unfit.goes_on(nodes=max(len(pool.unfit) for pool in stay))
        if missing and self._stay(missing, now):
            return
        self._members.believe()
        self._missing_since = math.inf
        self._holds.only(())

    def are_known(self) -> bool:
        """Whether members may be given to a load balancer of which nobody asked for anything."""
        missing = [key for key in self._nodes.undecodable if key not in self._nodes.store]
        known = not missing or are_known(len(missing), len(self._nodes.store))
        if known:
            self._undecodable.is_over()
        else:
            self._undecodable.goes_on(missing=len(missing))
        return known

    async def _look(self) -> None:
        if self._members.missing or any(pool.unfit for pool in self._members.pools):
            self._again()

    def _stay(self, missing: int, now: float) -> bool:
        among = len(self._members)
        many = missing == among or is_mass(missing, among)
        # A cluster without any node needs no other members.
        lasts = not len(self._nodes.store) or now < self._missing_since + LONGEST_S
        wait_s = self._guard.wait_s(missing, among, now, is_many=many and lasts)
        if wait_s and self._guard.in_doubt:
            self._holds.hold(self._about, REASON, _message(missing, among))
        return wait_s > 0


def _unfit_stay(pool: Pool, now: float) -> bool:
    """Remove unfit members from a pool; return True where they stay.

    An API server that loses its nodes makes all of them unfit, one after the other. So many within
    `DOUBT_S` stay as long, and the last ones until another node is fit.
    """
    if not pool.unfit:
        pool.unfit_since = math.inf
        return False
    pool.unfit_since = min(pool.unfit_since, now)
    pool.left_at = [left_at for left_at in pool.left_at if now < left_at + DOUBT_S]
    left = len(pool.left_at)
    is_doubtful = is_mass(len(pool.unfit) + left, len(pool) + left)
    is_doubtful = is_doubtful and now < pool.unfit_since + DOUBT_S
    if is_doubtful or len(pool.unfit) == len(pool):
        return True
    pool.drop_unfit(now)
    return False


def _message(missing: int, among: int) -> str:
    return (
        f"{missing} of {among} nodes are missing, though nobody saw them deleted. They stay "
        "members of load balancers until they are back, or half an hour while others are there; "
        f"to let them go, {ALLOW}"
    )
