"""Nodes, Services and Machines as shown by the sandbox, updated from watches and events.

No I/O and no clock: each update gets its time (monotonic seconds) as an argument. A row has the
state of one object. An object is settled once it is initialised (a node), served (a Service) or
running (a Machine). The sandbox has converged when every expected object has settled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ccm.cloud import default_load_balancer_name
from ccm.model import Event, Node, Service, names
from ccm.model.machines import Machine, Phase
from ccm.model.node import has_shutdown_taint, is_uninitialized
from ccm.model.service import TYPE_LOAD_BALANCER

SIM_LABELS = (
    names.LABEL_INSTANCE_TYPE_BETA,
    names.LABEL_INSTANCE_TYPE,
    names.LABEL_ZONE_BETA,
    names.LABEL_ZONE,
    names.LABEL_REGION_BETA,
    names.LABEL_REGION,
)
"""Labels that every node of the simulated cloud gets."""

LAGGARDS = 5
"""Maximum number of lines for each kind of unsettled object when the sandbox ends."""

RECENT = 200
"""Number of log entries that are kept."""

_HOUSEKEEPING = "-repair-controller"
"""Suffix of the names of kube-apiserver's own controllers; their Warning events are not counted."""

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
"""Reasons of events that repeat what the rows show."""

_SILENCE = "no event; see the daemon's log"


@dataclass(slots=True, kw_only=True)
class ObjectRow:
    """A node, Service or Machine.

    Attributes:
        key: name, or namespace and name.
        name: name; Services outside the default namespace have the namespace as prefix.
        uid: UID of the object.
        seen_at: time of the first observation, in monotonic seconds.
        changed_at: time of the last change of the row, in monotonic seconds.
        cells: column -> text.
        state: state that is shown in place of "waiting" or the time to settle; empty = none.
        is_good: whether the object works, once it is settled.
        settled_after: seconds from `seen_at` until the object was initialised, served or running;
            None = not settled yet.
        is_deleted: whether the object was deleted.
        last_event: reason and message of the last event.
        has_route: whether the node has a route for its Pods: NetworkUnavailable is False.
        balancer: name of the Service's load balancer.
        members: number of nodes behind the load balancer; None = unknown.
    """

    key: str
    name: str
    uid: str
    seen_at: float
    changed_at: float
    cells: Mapping[str, str] = field(default_factory=dict)
    state: str = ""
    is_good: bool = False
    settled_after: float | None = None
    is_deleted: bool = False
    last_event: str = ""
    has_route: bool = False
    balancer: str = ""
    members: int | None = None

    def update(self, now: float, cells: Mapping[str, str], *, state: str, is_good: bool) -> None:
        """Update the row to the current state of the object."""
        if (cells, state) != (self.cells, self.state):
            self.changed_at = now
        self.cells, self.state, self.is_good = cells, state, is_good


class RowGroup:
    """The rows of one kind, and the keys of the objects that are expected to settle."""

    def __init__(self, expected: Collection[str] = ()) -> None:
        self.rows: dict[str, ObjectRow] = {}
        self.expected = set(expected)
        self.missing = set(expected)

    @property
    def done(self) -> int:
        """Number of expected objects that have settled."""
        return len(self.expected) - len(self.missing)

    @property
    def present(self) -> Sequence[ObjectRow]:
        """Rows of existing objects."""
        return [row for row in self.rows.values() if not row.is_deleted]

    @property
    def absent(self) -> int:
        """Number of expected objects that never appeared."""
        return len(self.expected - self.rows.keys())

    def row(self, key: str, name: str, uid: str, now: float) -> tuple[ObjectRow, bool]:
        """Return the row of an object, and whether it is new; a recreated object gets a new row."""
        row = self.rows.get(key)
        if row is not None and not row.is_deleted and row.uid == uid:
            return row, False
        row = self.rows[key] = ObjectRow(key=key, name=name, uid=uid, seen_at=now, changed_at=now)
        return row, True


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Log entry for the screen."""

    at: float
    text: str
    is_warning: bool = False


class HappeningLog:
    """Log with the latest `RECENT` entries."""

    def __init__(self) -> None:
        self.count = 0
        self._recent: deque[Happening] = deque(maxlen=RECENT)

    def add(self, text: str, now: float, *, is_warning: bool = False) -> None:
        """Add an entry; beyond `RECENT` entries, drop the oldest."""
        self._recent.append(Happening(at=now, text=text, is_warning=is_warning))
        self.count += 1

    def since(self, count: int) -> Sequence[Happening]:
        """Return the entries added after the first `count`, except for dropped entries."""
        fresh = min(self.count - count, len(self._recent))
        return list(self._recent)[len(self._recent) - fresh :] if fresh > 0 else []


class Board:
    """The rows of all nodes, Services and Machines, and the objects that are expected to settle.

    Args:
        expected: names of the nodes that are to be initialised.
        labels: labels that an initialised node must have, beside an address from its cloud.
            Empty = a provider ID, and no uninitialized taint, are enough.
        routes: whether nodes are to have routes.
        services: namespace and name of the Services that are to be served.
        machines: number of Machines that are to run: the first that appear, and a later Machine in
            place of each that is deleted before it runs.
        machines_join: whether each Machine becomes an expected node of the same name.
        has_members: whether `members_seen` will be called. A Service then counts as served when
            its load balancer has every expected node, not as soon as it has an address.

    Attributes:
        awaited: number of expected Machines that do not exist yet.
        unrouted: names of the expected nodes that have never had a route.
        deployments: key -> progress of each MachineDeployment, as text.
        warnings: number of Warning events and of warnings and errors in the daemon's log.
        cloud_calls: number of calls that the cloud has counted; None = unknown.
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
        self.nodes, self.services, self.machines = (
            RowGroup(expected),
            RowGroup(services),
            RowGroup(),
        )
        self.awaited = machines
        self.routes = routes
        self.unrouted = set(expected) if routes else set()
        self.deployments: dict[str, str] = {}
        self.happenings = HappeningLog()
        self.warnings = 0
        self.cloud_calls: int | None = None
        self._labels = labels
        self._has_members = has_members
        self._machines_join = machines_join
        self._changed = asyncio.Event()
        self._warned: dict[str, int] = {}

    @property
    def is_converged(self) -> bool:
        """Whether every expected object has settled."""
        missing = self.nodes.missing or self.services.missing or self.machines.missing
        return not (missing or self.unrouted or self.awaited)

    @property
    def nodes_awaited(self) -> int:
        """Number of expected nodes whose Machines do not exist yet."""
        return self.awaited if self._machines_join else 0

    @property
    def nodes_expected(self) -> int:
        """Number of nodes that are to be initialised."""
        return len(self.nodes.expected) + self.nodes_awaited

    async def wait_initialised(self) -> None:
        """Wait until every expected node was initialised."""
        while self.nodes.missing or self.nodes_awaited:
            await self._next_change()

    async def wait_converged(self) -> None:
        """Wait for `is_converged`."""
        while not self.is_converged:
            await self._next_change()

    def node_seen(self, node: Node, now: float) -> None:
        """Update the row of a new or changed node."""
        row, is_new = self.nodes.row(node.name, node.name, node.uid, now)
        if is_new and node.name not in self.nodes.missing:
            self.happenings.add(f"{node.name}: registered", now)
        unavailable = node.condition_status(names.CONDITION_NETWORK_UNAVAILABLE)
        row.has_route = unavailable == names.STATUS_FALSE
        ranges = ",".join(node.spec.pod_cidrs or ())
        cells = {
            "READY": node.ready,
            "PROVIDER ID": node.provider_id,
            "TYPE": node.labels.get(names.LABEL_INSTANCE_TYPE, ""),
            "ZONE": node.labels.get(names.LABEL_ZONE) or node.labels.get(names.LABEL_REGION, ""),
            "ADDRESSES": ",".join(cloud_addresses(node)),
            "POD ROUTE": f"{ranges} {'created' if row.has_route else 'waiting'}" if ranges else "",
        }
        was_off, is_off = bool(row.state), has_shutdown_taint(node)
        is_good = node.ready == names.STATUS_TRUE and not is_off
        row.update(now, cells, state="shutdown taint" if is_off else "", is_good=is_good)
        if row.settled_after is None and is_settled(node, self._labels):
            row.settled_after = now - row.seen_at
            if not self._mark_settled(self.nodes, row):
                self.happenings.add(f"{node.name}: initialised", now)
        if row.has_route and row.key in self.unrouted:
            self.unrouted.remove(row.key)
            self._changed.set()
        if is_off != was_off:
            self.happenings.add(
                f"{node.name}: shutdown taint {'set' if is_off else 'removed'}", now
            )

    def node_gone(self, name: str, now: float) -> None:
        """Mark a node as deleted."""
        self._mark_deleted(self.nodes, name, now)

    def service_seen(self, service: Service, now: float) -> None:
        """Update the row of a new or changed Service."""
        name = service.name if service.namespace == "default" else service.key
        row, is_new = self.services.row(service.key, name, service.uid, now)
        if is_new:
            row.balancer = default_load_balancer_name(service)
            if service.key not in self.services.missing:
                self.happenings.add(f"Service {name}: created", now)
        cells = {
            "TYPE": service.type,
            "ADDRESS": ",".join(point.ip or point.hostname for point in service.ingress),
            "PORTS": ",".join(f"{port.port}/{port.protocol}" for port in service.ports),
        }
        is_balancer = service.type == TYPE_LOAD_BALANCER
        state = "being deleted" if service.is_deleting else "" if is_balancer else "no balancer"
        row.update(now, cells, state=state, is_good=not service.is_deleting)
        self._update_served(row, now)

    def service_gone(self, key: str, now: float) -> None:
        """Mark a Service as deleted."""
        self._mark_deleted(self.services, key, now, kind="Service ")

    def machine_seen(self, machine: Machine, now: float) -> None:
        """Update the row of a new or changed Machine."""
        row, is_new = self.machines.row(machine.key, machine.name, machine.uid, now)
        before = machine.phase.value if is_new else row.cells["PHASE"]
        cells = {
            "CLASS": machine.class_name,
            "PHASE": machine.phase.value,
            "NODE": machine.node_name,
            "PROVIDER ID": machine.provider_id,
        }
        runs = machine.phase is Phase.RUNNING and not machine.is_deleting
        state = "being deleted" if machine.is_deleting else ""
        row.update(now, cells, state=state, is_good=runs)
        row.last_event = machine.status.description
        self._add_expected_machine(row)
        if machine.phase.value != before:
            self.happenings.add(f"Machine {row.name}: {machine.phase.value}", now)
        if row.settled_after is None and runs:
            row.settled_after = now - row.seen_at
            self._mark_settled(self.machines, row)

    def machine_gone(self, key: str, now: float) -> None:
        """Mark a Machine as deleted."""
        self._mark_deleted(self.machines, key, now, kind="Machine ")
        if key in self.machines.missing:
            self._await_replacement(self.machines.rows[key])

    def members_seen(self, members: Mapping[str, int], now: float) -> None:
        """Update the rows of Services from load balancer name -> number of members."""
        for row in self.services.rows.values():
            count = members.get(row.balancer)
            if count != row.members:
                row.members = count
                row.changed_at = now
                self._update_served(row, now)

    def event_seen(self, event: Event, now: float) -> None:
        """Record an event about a node or a Service."""
        involved = event.involved_object
        if involved.kind == "Node":
            row, shown = self.nodes.rows.get(involved.name), involved.name
        elif involved.kind == "Service":
            row = self.services.rows.get(f"{involved.namespace}/{involved.name}")
            shown = f"Service {row.name if row else involved.name}"
        else:
            return
        self.count_warnings(event)
        text = f"{event.reason}: {event.message}"
        if row is not None:
            row.last_event = text
            row.changed_at = now
        if event.type == names.WARNING or event.reason not in _USUAL:
            self.happenings.add(f"{shown}: {text}", now, is_warning=event.type == names.WARNING)

    def count_warnings(self, event: Event) -> None:
        """Add to `warnings` the occurrences of a Warning event that were not counted before."""
        if event.type == names.WARNING and not event.source.component.endswith(_HOUSEKEEPING):
            times = max(1, event.count)
            self.warnings += times - self._warned.get(event.key, 0)
            self._warned[event.key] = times

    def daemon_warned(self, text: str, now: float) -> None:
        """Record a warning or an error of the daemon's log."""
        self.warnings += 1
        self.happenings.add(f"daemon: {text}", now, is_warning=True)

    def _mark_deleted(self, group: RowGroup, key: str, now: float, *, kind: str = "") -> None:
        row = group.rows.get(key)
        if row is not None and not row.is_deleted:
            row.is_deleted = True
            row.changed_at = now
            self.happenings.add(f"{kind}{row.name}: deleted", now)

    def _mark_settled(self, group: RowGroup, row: ObjectRow) -> bool:
        """Record that an object has settled; return whether it was expected to settle."""
        is_expected = row.key in group.missing
        group.missing.discard(row.key)
        self._changed.set()
        return is_expected

    def _update_served(self, row: ObjectRow, now: float) -> None:
        """Mark a Service as settled if it is served; see `has_members` of `Board`."""
        address = row.cells["ADDRESS"]
        if row.settled_after is not None or not address:
            return
        is_expected = row.key in self.services.missing
        if is_expected and self._has_members and (row.members or 0) < self.nodes_expected:
            return
        row.settled_after = now - row.seen_at
        if not self._mark_settled(self.services, row):
            self.happenings.add(f"Service {row.name}: reachable at {address}", now)

    def _add_expected_machine(self, row: ObjectRow) -> None:
        """Add a Machine to the expected Machines, unless enough Machines are expected already."""
        is_going = row.is_deleted or row.state
        if not self.awaited or row.key in self.machines.expected or is_going:
            return
        self.awaited -= 1
        self.machines.expected.add(row.key)
        if row.settled_after is None:
            self.machines.missing.add(row.key)
        if self._machines_join:
            node = self.nodes.rows.get(row.name)
            self.nodes.expected.add(row.name)
            if node is None or node.settled_after is None:
                self.nodes.missing.add(row.name)
            if self.routes and not (node is not None and node.has_route):
                self.unrouted.add(row.name)
        self._changed.set()

    def _await_replacement(self, row: ObjectRow) -> None:
        """Expect another Machine in place of a Machine that was deleted before it ran."""
        self.awaited += 1
        self.machines.missing.remove(row.key)
        self.machines.expected.remove(row.key)
        if self._machines_join:
            self.nodes.expected.remove(row.name)
            self.nodes.missing.discard(row.name)
            self.unrouted.discard(row.name)
        for candidate in self.machines.rows.values():
            self._add_expected_machine(candidate)

    async def _next_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def is_settled(node: Node, labels: Sequence[str]) -> bool:
    """Return whether the daemon has finished the initialisation of a node; see `Board`."""
    if is_uninitialized(node) or not node.provider_id:
        return False
    has_labels = all(node.labels.get(key) for key in labels)
    return not labels or (bool(cloud_addresses(node)) and has_labels)


def cloud_addresses(node: Node) -> Sequence[str]:
    """Return the addresses that only the cloud knows: all but host names."""
    return tuple(
        address.address for address in node.addresses if address.type != names.ADDRESS_HOSTNAME
    )


# --- as text -------------------------------------------------------------------------------------


def summary(board: Board) -> str:
    """Return the state in one line, which fits 80 columns with hundreds of nodes."""
    nodes, machines = board.nodes.present, board.machines.present
    services = [row for row in board.services.present if row.state != "no balancer"]
    node_count = len(nodes) + board.nodes.absent + board.nodes_awaited
    parts = []
    if count := len(machines) + board.awaited:
        parts.append(f"{sum(row.is_good for row in machines)}/{count} machines")
    settled = sum(row.settled_after is not None for row in nodes)
    parts.append(f"{settled}/{node_count} nodes initialised")
    if board.routes:
        parts.append(f"{sum(row.has_route for row in nodes)}/{node_count} routes")
    if count := len(services) + board.services.absent:
        served = sum(row.settled_after is not None and not row.state for row in services)
        parts.append(f"{served}/{count} Services")
    if board.cloud_calls is not None:
        parts.append(f"{board.cloud_calls} calls")
    return ", ".join([*parts, f"{board.warnings} warnings"])


def unsettled_lines(board: Board) -> Iterator[str]:
    """Yield a line, with the last event, for at most `LAGGARDS` unsettled objects of each kind."""
    for key in sorted(board.machines.missing)[:LAGGARDS]:
        yield f"not running: Machine {key}: {_last_word(board.machines, key, 'never created')}"
    if board.awaited:
        noun = "Machine" if board.awaited == 1 else "Machines"
        yield f"not running: {board.awaited} {noun}: never created"
    waiting = board.unrouted - board.nodes.missing
    for what, missing in (("not initialised", board.nodes.missing), ("no route", waiting)):
        for name in sorted(missing)[:LAGGARDS]:
            yield f"{what}: node {name}: {_last_word(board.nodes, name, 'never registered')}"
    for key in sorted(board.services.missing)[:LAGGARDS]:
        yield f"not served: Service {key}: {_last_word(board.services, key, 'never created')}"


def _last_word(group: RowGroup, key: str, nothing: str) -> str:
    row = group.rows.get(key)
    return (row.last_event or _SILENCE) if row else nothing


def last_line(
    board: Board, *, writes: int | None, cloud_calls: int | None, took_s: float | None
) -> str:
    """Return the result: nodes, routes, Services, writes, cloud calls, warnings.

    Args:
        writes: the daemon's writes of nodes and Services; None = unknown.
        cloud_calls: number of calls that the cloud counted; None = unknown.
        took_s: seconds until convergence; None = not converged.
    """
    parts = (
        *achieved(board),
        f"{'?' if writes is None else writes} writes",
        f"{'?' if cloud_calls is None else cloud_calls} cloud calls",
        f"{board.warnings} warnings",
    )
    start = "done" if took_s is not None else "not converged"
    end = f" in {took_s:.1f} s" if took_s is not None else ""
    return f"{start}: {', '.join(parts)}{end}"


def achieved(board: Board) -> list[str]:
    """Return a text such as `3 of 5 nodes initialised` for each expected kind."""
    parts = []
    if machines := len(board.machines.expected) + board.awaited:
        parts.append(f"{_part(board.machines.done, machines)} machines run")
    if board.nodes_expected or not parts:
        parts.append(f"{_part(board.nodes.done, board.nodes_expected)} nodes initialised")
    if board.routes and board.nodes_expected:
        routed = len(board.nodes.expected) - len(board.unrouted)
        parts.append(f"{_part(routed, board.nodes_expected)} routes")
    if services := len(board.services.expected):
        parts.append(f"{_part(board.services.done, services)} Services served")
    return parts


def _part(done: int, expected: int) -> str:
    return str(done) if done == expected else f"{done} of {expected}"
