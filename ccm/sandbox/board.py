"""What is known about nodes, Services and Machines: fed by changes and events, and read by whoever
shows it.

No I/O and no clock: each entry comes with its moment (monotonic seconds). A row tells
what the daemon did to one object; the counts tell whether the sandbox has converged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from ccm.model import Event, Node, Service, names
from ccm.model.machines import Machine
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.sandbox import rows
from ccm.sandbox.counts import Counts, Standing
from ccm.sandbox.news import News
from ccm.sandbox.rows import MachineRow, Row, ServiceRow, Shown

_HOUSEKEEPING = "-repair-controller"
"""How a kube-apiserver's own controllers are called that repair its allocations; what they
warn about is none of the daemon's doing."""


class Board:
    """All rows.

    Args:
        expected: names of the nodes that shall be initialised.
        labels: those an initialised node must have; with them it also needs addresses of
            its cloud. Empty: a provider ID and no taint are enough.
        routes: whether nodes shall have routes, too.
        services: namespace and name of the Services that shall be served.
        machines: how many Machines shall run: the first that come, and for one that goes before
            it ran the next.
        machines_join: whether each becomes a node of its own name, which is expected too.
        has_members: whether `members_seen` will be told; a Service is served then when
            traffic for it goes to every expected node, and not as soon as it has an address.
    """

    def __init__(
        self,
        expected: Collection[str],
        *,
        labels: Sequence[str] = (),
        routes: bool = False,
        services: Collection[str] = (),
        machines: int = 0,
        machines_join: bool = False,
        has_members: bool = False,
    ) -> None:
        self.rows: dict[str, Row] = {}
        self.services: dict[str, ServiceRow] = {}
        self.machines: dict[str, MachineRow] = {}
        self.deployments: dict[str, str] = {}
        nodes = len(expected) + (machines if machines_join else 0)
        self.counts = Counts(
            expected=nodes,
            routes_expected=nodes if routes else 0,
            services_expected=len(services),
            machines_expected=machines,
        )
        self.news = News()
        self._labels = labels
        self._has_members = has_members
        self._expected = set(expected)
        self._expected_services = frozenset(services)
        self._expected_machines: set[str] = set()
        self._machines_join = machines_join
        self.awaited = machines
        """Expected Machines that are not there yet."""
        self._missing = set(expected)
        self._unrouted = set(expected) if routes else set()
        self._unserved = set(services)
        self._idle: set[str] = set()
        self._changed = asyncio.Event()
        self._warned: dict[str, int] = {}

    @property
    def is_converged(self) -> bool:
        """Whether all that is expected once had what it needs."""
        left = self._missing or self._unrouted or self._unserved or self._idle
        return not (left or self.awaited)

    @property
    def missing(self) -> Sequence[str]:
        """Expected nodes that are not initialised, sorted."""
        return sorted(self._missing)

    @property
    def unrouted(self) -> Sequence[str]:
        """Expected nodes that have no route, sorted."""
        return sorted(self._unrouted)

    @property
    def unserved(self) -> Sequence[str]:
        """Expected Services that are not served, sorted."""
        return sorted(self._unserved)

    @property
    def idle(self) -> Sequence[str]:
        """Expected Machines that are there and do not run, sorted."""
        return sorted(self._idle)

    @property
    def standing(self) -> Standing:
        """How things stand now."""
        nodes = [row for row in self.rows.values() if not row.is_deleted]
        services = [
            row
            for row in self.services.values()
            if row.type == TYPE_LOAD_BALANCER and not row.is_deleted
        ]
        machines = [row for row in self.machines.values() if not row.is_deleted]
        return Standing(
            nodes=len(nodes) + len(self._expected - self.rows.keys()) + self._nodes_awaited,
            initialised=sum(row.settled_after is not None for row in nodes),
            routed=sum(row.has_route for row in nodes),
            services=len(services) + len(self._expected_services - self.services.keys()),
            served=sum(row.settled_after is not None and not row.is_deleting for row in services),
            machines=len(machines) + self.awaited,
            running=sum(rows.runs(row) for row in machines),
        )

    async def wait_initialised(self) -> None:
        """Return when every expected node was initialised."""
        while self._missing or self._nodes_awaited:
            await self._next_change()

    async def wait_converged(self) -> None:
        """Return when `is_converged`."""
        while not self.is_converged:
            await self._next_change()

    def node_seen(self, node: Node, now: float) -> None:
        """A node is there, or changed."""
        row = self.rows.get(node.name)
        if row is None or row.is_deleted or row.uid != node.uid:
            row = Row(name=node.name, seen_at=now, changed_at=now, uid=node.uid)
            self.rows[node.name] = row
            if node.name not in self._missing:
                self.news.note(f"{node.name}: registered", now)
        before = _shown(row)
        was_shut_down = row.is_shut_down
        rows.fill_node(row, node)
        if row.settled_after is None and rows.is_settled(node, self._labels):
            row.settled_after = now - row.seen_at
            self._settled(row, now)
        if row.has_route and row.name in self._unrouted:
            self._unrouted.remove(row.name)
            self.counts.routes += 1
            self._changed.set()
        if before != _shown(row):
            row.changed_at = now
        if row.is_shut_down != was_shut_down:
            self.news.note(
                f"{node.name}: shutdown taint {'set' if row.is_shut_down else 'lifted'}", now
            )

    def node_gone(self, name: str, now: float) -> None:
        """A node was deleted."""
        self._gone(self.rows.get(name), name, now)

    def service_seen(self, service: Service, now: float) -> None:
        """A Service is there, or changed."""
        row = self.services.get(service.key)
        if row is None or row.is_deleted or row.uid != service.uid:
            row = rows.new_service_row(service, now)
            self.services[service.key] = row
            if service.key not in self._unserved:
                self.news.note(f"Service {row.name}: created", now)
        before = (row.type, row.addresses, row.ports, row.is_deleting)
        rows.fill_service(row, service)
        if before != (row.type, row.addresses, row.ports, row.is_deleting):
            row.changed_at = now
        self._judge(row, now)

    def service_gone(self, key: str, now: float) -> None:
        """A Service was deleted, and its load balancer with it."""
        row = self.services.get(key)
        self._gone(row, f"Service {row.name if row else key}", now)

    def machine_seen(self, machine: Machine, now: float) -> None:
        """A Machine is there, or changed."""
        row = self.machines.get(machine.key)
        if row is None or row.is_deleted or row.uid != machine.uid:
            row = self.machines[machine.key] = rows.new_machine_row(machine, now)
        before = (row.phase, row.node, row.provider_id, row.is_deleting, row.made_of)
        rows.fill_machine(row, machine)
        self._expect(row)
        if before != (row.phase, row.node, row.provider_id, row.is_deleting, row.made_of):
            row.changed_at = now
            if row.phase != before[0]:
                self.news.note(f"Machine {row.name}: {row.phase}", now)
        if row.settled_after is None and rows.runs(row):
            row.settled_after = now - row.seen_at
            if row.key in self._idle:
                self._idle.remove(row.key)
                self.counts.machines += 1
                self._changed.set()

    def machine_gone(self, key: str, now: float) -> None:
        """A Machine was deleted, and its VM with it."""
        row = self.machines.get(key)
        self._gone(row, f"Machine {row.name if row else key}", now)
        if row is not None and key in self._idle:
            self._replace(row)

    def deployment_seen(self, key: str, text: str) -> None:
        """A MachineDeployment is there, or changed; how it stands, for people."""
        self.deployments[key] = text

    def deployment_gone(self, key: str) -> None:
        """A MachineDeployment was deleted."""
        self.deployments.pop(key, None)

    def members_seen(self, members: Mapping[str, int], now: float) -> None:
        """The load balancers that the cloud has, by name, each with its number of members."""
        for row in self.services.values():
            count = members.get(row.balancer)
            if count != row.members:
                row.members = count
                row.changed_at = now
                self._judge(row, now)

    def event_seen(self, event: Event, now: float) -> None:
        """An event about a node or a Service was recorded, or counted again."""
        involved = event.involved_object
        row: Shown | None
        if involved.kind == "Node":
            row, shown = self.rows.get(involved.name), involved.name
        elif involved.kind == "Service":
            row = self.services.get(f"{involved.namespace}/{involved.name}")
            shown = f"Service {row.name if row else involved.name}"
        else:
            return
        self.count_warnings(event)
        text = f"{event.reason}: {event.message}"
        if row is not None:
            row.last_event = text
            row.changed_at = now
        if event.type == names.WARNING or event.reason not in _USUAL:
            self.news.note(f"{shown}: {text}", now, is_warning=event.type == names.WARNING)

    def count_warnings(self, event: Event) -> None:
        """Count a Warning event as often as it says it occurred; safe to repeat."""
        if event.source.component.endswith(_HOUSEKEEPING):
            return
        if event.type == names.WARNING:
            times = max(1, event.count)
            self.counts.warnings += times - self._warned.get(event.key, 0)
            self._warned[event.key] = times

    def daemon_warned(self, text: str, now: float) -> None:
        """The daemon logged a warning or an error."""
        self.counts.warnings += 1
        self.news.note(f"daemon: {text}", now, is_warning=True)

    def _gone(self, row: Shown | None, shown: str, now: float) -> None:
        if row is not None and not row.is_deleted:
            row.is_deleted = True
            row.changed_at = now
            self.news.note(f"{shown}: deleted", now)

    @property
    def _nodes_awaited(self) -> int:
        """Nodes of Machines that are not there yet."""
        return self.awaited if self._machines_join else 0

    def _expect(self, row: MachineRow) -> None:
        """Let this be one of the Machines that shall run, unless there are enough."""
        if not self.awaited or row.key in self._expected_machines:
            return
        if row.is_deleted or row.is_deleting:
            return
        self.awaited -= 1
        self._expected_machines.add(row.key)
        if row.settled_after is None:
            self._idle.add(row.key)
        else:
            self.counts.machines += 1
        if self._machines_join:
            self._expect_node(row.name)
        self._changed.set()

    def _expect_node(self, name: str) -> None:
        """Let this be one of the nodes that shall be initialised."""
        node = self.rows.get(name)
        self._expected.add(name)
        if node is not None and node.settled_after is not None:
            self.counts.initialised += 1
        else:
            self._missing.add(name)
        if self.counts.routes_expected and node is not None and node.has_route:
            self.counts.routes += 1
        elif self.counts.routes_expected:
            self._unrouted.add(name)

    def _replace(self, row: MachineRow) -> None:
        """A Machine went before it ran: another one shall run in its place."""
        self.awaited += 1
        self._idle.remove(row.key)
        self._expected_machines.remove(row.key)
        if self._machines_join:
            self._expected.remove(row.name)
            if row.name not in self._missing:
                self.counts.initialised -= 1
            if self.counts.routes_expected and row.name not in self._unrouted:
                self.counts.routes -= 1
            self._missing.discard(row.name)
            self._unrouted.discard(row.name)
        for one in self.machines.values():
            self._expect(one)

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _settled(self, row: Row, now: float) -> None:
        if row.name not in self._missing:
            self.news.note(f"{row.name}: initialised", now)
            return
        self._missing.remove(row.name)
        self.counts.initialised += 1
        self._changed.set()

    def _judge(self, row: ServiceRow, now: float) -> None:
        """See whether a Service is served now."""
        if row.settled_after is not None or not row.addresses:
            return
        expected = row.key in self._unserved
        if expected and self._has_members and (row.members or 0) < self.counts.expected:
            return
        row.settled_after = now - row.seen_at
        if expected:
            self._unserved.remove(row.key)
            self.counts.services += 1
            self._changed.set()
        else:
            self.news.note(f"Service {row.name}: reached at {','.join(row.addresses)}", now)


_USUAL = frozenset(
    {
        names.REASON_SYNCED,
        names.REASON_ENSURING_BALANCER,
        names.REASON_ENSURED_BALANCER,
        names.REASON_DELETING_BALANCER,
        names.REASON_DELETED_BALANCER,
        names.REASON_UPDATED_BALANCER,
    }
)
"""Reasons of events that tell what the rows tell already."""


def _shown(row: Row) -> tuple[object, ...]:
    return (
        row.provider_id,
        row.addresses,
        row.pod_range,
        row.has_route,
        row.is_shut_down,
        row.settled_after,
    )
