"""Says of each node, in its NetworkUnavailable condition, whether all of its routes are there.

What is said follows from the last comparison, corrected by the routes that were created
since. While a call still creates one, nothing is said.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable

from ccm.base import clock, log
from ccm.cloud.lookup import Ownership
from ccm.controllers.route import plan
from ccm.kube.informer import Informer
from ccm.model import Node, names
from ccm.model.cidr import Network
from ccm.model.patches import Patch
from ccm.model.times import format_time
from ccm.runtime.controller import DONE, Controller, Result
from ccm.runtime.writer import Step, Writer, Writes

QUEUE_NAME = "RouteConditions"
"""Value of the work-queue metrics' label."""


class Conditions:
    """Writes the conditions.

    Args:
        nodes: the shared cache of nodes.
        api: requests in the controller's name.
        workers: conditions written at once.
        keep_foreign_reason: leave a condition of the right status alone when somebody else
            wrote it.
        ownership: which nodes are ours; nothing is said about the others.
    """

    def __init__(
        self,
        *,
        nodes: Informer[Node],
        api: Writes[Node],
        workers: int,
        keep_foreign_reason: bool,
        ownership: Ownership,
    ) -> None:
        self._nodes = nodes
        self._ownership = ownership
        self._writer = Writer(api)
        self._keep_foreign_reason = keep_foreign_reason
        self._log = log.logger(names.COMPONENT_ROUTE)
        self._missing: dict[str, set[Network | str]] = {}
        self._cut_off: Collection[str] = ()
        self._creating: Counter[str] = Counter()
        self._created_lately: set[tuple[str, Network]] = set()
        self.controller = Controller(
            names.COMPONENT_ROUTE, queue=QUEUE_NAME, reconcile=self._write, workers=workers
        )

    def listing(self) -> None:
        """Routes are listed now: what is created from here on may not be among them."""
        self._created_lately.clear()

    def compared(self, found: plan.Plan) -> None:
        """A comparison found this."""
        self._cut_off = found.cut_off
        self._missing = {name: set(networks) for name, networks in found.missing.items()}
        for name, network in self._created_lately:
            self._missing.get(name, set()).discard(network)

    async def write(self, nodes: Iterable[Node]) -> None:
        """Write what these nodes' conditions should say and do not."""
        for number, node in enumerate(nodes, start=1):
            if self._patch(node) is not None:
                self.controller.queue.add(node.name)
            if number % plan.CHUNK == 0:
                await asyncio.sleep(0)

    def begin(self, name: str) -> None:
        """A call creates a route of that node."""
        self._creating[name] += 1

    def created(self, name: str, network: Network) -> None:
        """A route of that node is there now."""
        self._missing.get(name, set()).discard(network)
        self._created_lately.add((name, network))

    def end(self, name: str) -> None:
        """A call that was begun is over, however it ended."""
        self.drop(name)
        if not self._creating[name]:
            self.controller.queue.add(name)

    def drop(self, name: str) -> None:
        """A call that was begun is left to the next comparison; nothing is said until then."""
        self._creating[name] -= 1
        if not self._creating[name]:
            del self._creating[name]

    def forget(self, name: str) -> None:
        """Nothing is known about that node, so nothing is said until the next comparison."""
        self._missing.pop(name, None)

    async def _write(self, name: str) -> Result:
        node = self._nodes.store.get(name)
        if node is None:
            return DONE
        if (await self._writer.change(node, Step(self._patch, "status"))).changed:
            self._log.info("node condition NetworkUnavailable written", node=name)
        return DONE

    def _patch(self, node: Node) -> Patch | None:
        if self._creating[node.name] or self._ownership.is_foreign(node):
            return None
        missing = self._missing.get(node.name)
        if missing is None and node.name not in self._cut_off:
            return None
        return plan.condition_patch(
            node,
            created=missing is not None and not missing,
            now=format_time(clock.now()),
            keep_foreign_reason=self._keep_foreign_reason,
        )
