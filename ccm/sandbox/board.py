"""What is known about every node: fed by changes and events, read by whoever shows it.

No I/O and no clock: each entry comes with its moment (monotonic seconds). A row tells
what the daemon did to one node; the counts tell whether the sandbox has converged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ccm.model import Event, Node, names
from ccm.model.node import has_shutdown_taint, is_uninitialized

SIM_LABELS = (
    names.LABEL_INSTANCE_TYPE_BETA,
    names.LABEL_INSTANCE_TYPE,
    names.LABEL_ZONE_BETA,
    names.LABEL_ZONE,
    names.LABEL_REGION_BETA,
    names.LABEL_REGION,
)
"""Labels that every node of the simulated cloud gets."""

RECENT = 200
"""Happenings that are remembered."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One node.

    Attributes:
        name: of the node.
        seen_at: when it registered.
        changed_at: when the daemon last did something to it.
        ready: status of its Ready condition.
        provider_id: empty until it is initialised.
        type: instance type.
        zone: zone, or region where there is no zone.
        addresses: those of the cloud.
        settled_after: seconds from registration until it was initialised.
        is_shut_down: it carries the shutdown taint.
        is_deleted: it is gone.
        last_event: reason and message.
    """

    name: str
    seen_at: float
    changed_at: float
    uid: str = ""
    ready: str = names.STATUS_UNKNOWN
    provider_id: str = ""
    type: str = ""
    zone: str = ""
    addresses: Sequence[str] = ()
    settled_after: float | None = None
    is_shut_down: bool = False
    is_deleted: bool = False
    last_event: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something worth a line: when, and what."""

    at: float
    text: str
    is_warning: bool = False


@dataclass(slots=True, kw_only=True)
class Counts:
    """Numbers about the whole.

    Attributes:
        expected: nodes that shall be initialised.
        registered: nodes that registered.
        initialised: expected nodes that are or once were initialised.
        warnings: Warning events, and lines of that level or above in the daemon's log.
        cloud_calls: calls the cloud has seen; None: nobody can tell yet.
    """

    expected: int
    registered: int = 0
    initialised: int = 0
    warnings: int = 0
    cloud_calls: int | None = None


class Board:
    """All rows.

    Args:
        expected: names of the nodes that shall be initialised.
        labels: those an initialised node must have; with them it also needs addresses of
            its cloud. Empty: a provider ID and no taint are enough.
    """

    def __init__(self, expected: Collection[str], *, labels: Sequence[str] = ()) -> None:
        self.rows: dict[str, Row] = {}
        self.counts = Counts(expected=len(expected))
        self.recent: deque[Happening] = deque(maxlen=RECENT)
        self.happened = 0
        self._labels = labels
        self._missing = set(expected)
        self._none_missing = asyncio.Event()
        self._warned: dict[str, int] = {}

    @property
    def is_converged(self) -> bool:
        """Whether every expected node was initialised."""
        return not self._missing

    @property
    def missing(self) -> Sequence[str]:
        """Expected nodes that are not initialised, sorted."""
        return sorted(self._missing)

    async def wait_converged(self) -> None:
        """Return when every expected node was initialised."""
        await self._none_missing.wait()

    def node_seen(self, node: Node, now: float) -> None:
        """A node is there, or changed."""
        row = self.rows.get(node.name)
        if row is None or row.is_deleted or row.uid != node.uid:
            row = Row(name=node.name, seen_at=now, changed_at=now, uid=node.uid)
            self.rows[node.name] = row
            self.counts.registered += 1
            if node.name not in self._missing:
                self.note(f"{node.name}: registered", now)
        before = (row.provider_id, row.addresses, row.is_shut_down, row.settled_after)
        row.ready = node.ready
        row.provider_id = node.provider_id
        row.type = node.labels.get(names.LABEL_INSTANCE_TYPE, "")
        row.zone = node.labels.get(names.LABEL_ZONE) or node.labels.get(names.LABEL_REGION, "")
        row.addresses = cloud_addresses(node)
        row.is_shut_down = has_shutdown_taint(node)
        if row.settled_after is None and is_settled(node, self._labels):
            row.settled_after = now - row.seen_at
            self._settled(row, now)
        if before != (row.provider_id, row.addresses, row.is_shut_down, row.settled_after):
            row.changed_at = now
        if row.is_shut_down != before[2]:
            self.note(f"{node.name}: shutdown taint {'set' if row.is_shut_down else 'lifted'}", now)

    def node_gone(self, name: str, now: float) -> None:
        """A node was deleted."""
        row = self.rows.get(name)
        if row is not None and not row.is_deleted:
            row.is_deleted = True
            row.changed_at = now
            self.note(f"{name}: deleted", now)

    def event_seen(self, event: Event, now: float) -> None:
        """An event about a node was recorded, or counted again."""
        if event.involved_object.kind != "Node":
            return
        self.count_warnings(event)
        name = event.involved_object.name
        text = f"{event.reason}: {event.message}"
        row = self.rows.get(name)
        if row is not None:
            row.last_event = text
            row.changed_at = now
        if event.reason != names.REASON_SYNCED:  # the row says that already
            self.note(f"{name}: {text}", now, is_warning=event.type == names.WARNING)

    def count_warnings(self, event: Event) -> None:
        """Count a Warning event as often as it says it occurred; safe to repeat."""
        if event.type == names.WARNING:
            times = max(1, event.count)
            self.counts.warnings += times - self._warned.get(event.key, 0)
            self._warned[event.key] = times

    def daemon_warned(self, text: str, now: float) -> None:
        """The daemon logged a warning or an error."""
        self.counts.warnings += 1
        self.note(f"daemon: {text}", now, is_warning=True)

    def note(self, text: str, now: float, *, is_warning: bool = False) -> None:
        """Remember a happening."""
        self.recent.append(Happening(at=now, text=text, is_warning=is_warning))
        self.happened += 1

    def news(self, since: int) -> Sequence[Happening]:
        """Happenings that came after the first `since` ones; at most `RECENT`."""
        fresh = min(self.happened - since, len(self.recent))
        return list(self.recent)[len(self.recent) - fresh :] if fresh > 0 else []

    def _settled(self, row: Row, now: float) -> None:
        if row.name not in self._missing:
            self.note(f"{row.name}: initialised", now)
            return
        self._missing.remove(row.name)
        self.counts.initialised += 1
        if not self._missing:
            self._none_missing.set()


def is_settled(node: Node, labels: Sequence[str]) -> bool:
    """Whether the daemon has done all that a new node needs; see `Board`."""
    if is_uninitialized(node) or not node.provider_id:
        return False
    if not labels:
        return True
    return bool(cloud_addresses(node)) and all(node.labels.get(key) for key in labels)


def cloud_addresses(node: Node) -> Sequence[str]:
    """The addresses that only the cloud can know: all but host names."""
    return tuple(one.address for one in node.addresses if one.type != names.ADDRESS_HOSTNAME)
