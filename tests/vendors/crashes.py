"""The daemon is killed at each point of the creation and deletion of a resource.

A row of the table names a point: a write of the journal, or a request to the cloud, and when the
daemon is killed there. The next daemon finds the owner of the resource unchanged, or the owner is
gone without its finalizer. In the first case it continues, in the second the journal is all that
shows the resource. In the end nothing is left, and every resource of others is.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from ccm.controllers.service.manifest import MANIFEST as SERVICE
from ccm.persistence.journal import EntryState
from ccm.runtime.journal import LOAD_BALANCER, SERVER
from providers.hcloud.machines import PLACEMENT_GROUP
from tests.faults import Call, Exchange, FaultProxy, Fell, Match, Point, Rule
from tests.scenario import harness, machines
from tests.scenario.harness import Daemon, Environment, wait_for
from tests.scenario.machines import MACHINES, SERVICES
from tests.support import journals
from tests.vendors import hurried, lives
from tests.vendors.clouds import Vendor
from tests.waiting import DEADLINE_S

INTENT, CREATED, DELETING, REMOVED = EntryState

# Without the controller that deletes VMs without a Machine by itself.
CONTROLLERS = (SERVICE.name, "machine", "machineclass")
FLAGS: Mapping[str, str] = {
    **lives.FLAGS,
    "controllers": ",".join(CONTROLLERS),
    "journal": "delete",
    "journal-check-period": "500ms",
    "journal-grace-period": "0s",
    "journal-ephemeral-grace-period": "0s",
}

CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
BYSTANDER = "bystander"
REMOVAL_S = 0.5
"""How long the cloud takes for deletions that it confirms later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A point of the table.

    Attributes:
        name: what has happened.
        deletes: whether it is a point of the deletion.
        state: the write of the journal with this state; None = the request to the cloud.
        at: the point of that request at which the daemon is killed.
        exists: whether the cloud then has the resource; None = either.
        store_fails: the daemon lives on, writes no entry any more, and is killed later.
    """

    name: str
    deletes: bool = False
    state: EntryState | None = None
    at: Point
    exists: bool | None
    store_fails: bool = False


UNANSWERED = Row(name="call accepted, no answer", at=Point.TOOK_EFFECT, exists=True)
ROWS = (
    Row(name="before the intent", state=INTENT, at=Point.BEFORE, exists=False),
    Row(name="after the intent", state=INTENT, at=Point.TOOK_EFFECT, exists=False),
    # Of a server with parts: those are there.
    Row(name="before the call", at=Point.BEFORE, exists=False),
    UNANSWERED,
    Row(name="answered, ID not recorded", state=CREATED, at=Point.BEFORE, exists=True),
    Row(name="journal fails", at=Point.TOOK_EFFECT, exists=True, store_fails=True),
    Row(name="before Deleting", deletes=True, state=DELETING, at=Point.BEFORE, exists=True),
    Row(name="after Deleting", deletes=True, at=Point.BEFORE, exists=True),
    Row(name="deletion accepted", deletes=True, at=Point.TOOK_EFFECT, exists=None),
    Row(name="absence confirmed", deletes=True, state=REMOVED, at=Point.BEFORE, exists=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPoint:
    """A row for one resource.

    Attributes:
        resource: as in the journal.
        row: the row.
        is_lost: whether the owner is gone when the next daemon starts.
        owners: path of the objects of which the resource is one.
    """

    resource: str
    row: Row
    is_lost: bool
    owners: str

    def __str__(self) -> str:
        return f"{self.resource}: {self.row.name}, owner {'lost' if self.is_lost else 'kept'}"


def points_of(vendor: Vendor) -> Sequence[CrashPoint]:
    """The whole table. All resources of one owner are Deleting, and Removed, in the same write."""
    return [
        CrashPoint(
            resource=resource,
            row=row,
            is_lost=is_lost,
            owners=SERVICES if resource in vendor.of_services else MACHINES,
        )
        for resource in vendor.resources
        for row in ROWS
        if resource in (LOAD_BALANCER, SERVER) or row.state not in (DELETING, REMOVED)
        for is_lost in (True, False)
    ]


class CrashTable:
    """Daemons before one cloud, which has resources of a living owner and of another cluster.

    Args:
        env: no daemon of its own runs.
        vendor: of the cloud, and opened with `FLAGS`.
        cloud: between the daemons and the cloud.
        api: between the daemons and the API server.
    """

    def __init__(
        self, env: Environment, vendor: Vendor, cloud: FaultProxy, api: FaultProxy
    ) -> None:
        self._env, self._vendor = env, vendor
        self._cloud, self._api = cloud, api
        self._pool = vendor.pool()
        self._kept: set[tuple[str, Any]] = set()
        self._numbers = itertools.count(1)
        self._daemon: Daemon | None = None

    async def prepare(self) -> None:
        """Create the resources that stay, and their owners."""
        cluster, pool = self._env.cluster, self._pool
        grouped = {"placementGroupPrefix": "workers", "volumes": [10]} if self._has_groups else {}
        await machines.prepare(self._env)
        for name, spec in (("small", {**pool.spec, **grouped}), (BYSTANDER, pool.spec)):
            await machines.make_class(cluster, name, spec, pool.secret, provider=pool.provider)
        await self._start()
        for path in (SERVICES, MACHINES):
            await self._create(path, BYSTANDER, made_of=BYSTANDER)
        await wait_for(self._has_bystander, "resources of the bystander are recorded")
        self._vendor.add_foreign()
        self._kept = self._vendor.ids()

    async def die(self, point: CrashPoint) -> None:
        """Kill the daemon at a point, and start the next one.

        Raises:
            AssertionError: a resource is left, missing, or there twice.
        """
        print(point, flush=True)
        try:
            await self._die(point, f"o{next(self._numbers)}")
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(f"{point}: {str(error) or 'it was never reached'}") from error

    async def _die(self, point: CrashPoint, name: str) -> None:
        cluster, row, path = self._env.cluster, point.row, f"{point.owners}/{name}"
        self._vendor.delay_removals(0.0)
        began = len(self._cloud.log)
        if row.deletes:
            await self._create(point.owners, name)
            await wait_for(lambda: self._is_recorded(point, name), "everything is recorded")
            self._vendor.delay_removals(REMOVAL_S)
            await self._killed(point, name, cluster.delete(path))
        else:
            await self._killed(point, name, self._create(point.owners, name))
        _, table = self._vendor.resources[point.resource]
        assert row.exists in (None, self._counts()[table] == 1), f"at the kill: {self._counts()}"
        if point.is_lost:
            await self._lose(path)
        await self._start()
        if not (row.deletes or point.is_lost):
            await wait_for(lambda: self._is_served(point, path), "the owner is served")
            await wait_for(
                lambda: self._is_recorded(point, name, but=self._unfinished),
                "everything is recorded",
            )
            # OpenStack gives each new security group two rules, which the provider deletes.
            deletions = [
                one
                for one in self._cloud.log[began:]
                if one.method == "DELETE" and "/security-group-rules/" not in one.path
            ]
            assert deletions == [], f"deleted: {deletions}"
            await cluster.delete(path)
        await wait_for(lambda: self._is_over(path, name), "nothing is left")
        assert await self._has_bystander()

    async def _killed(self, point: CrashPoint, name: str, act: Any) -> None:
        """Act, and wait until that has killed the daemon."""
        daemon, struck = self._daemon, asyncio.Event()
        assert daemon is not None
        journal_writes = Match(method="POST|PUT", path=f"^{CONFIG_MAPS}")
        rules: list[tuple[FaultProxy, Rule]] = []

        def strike() -> None:
            daemon.signal(signal.SIGKILL)
            struck.set()

        async def fail(_: Exchange) -> None:
            rules.append((self._api, self._api.on(journal_writes, harness.refusal(500))))
            late = Fell(strike, at=Point.ANSWERED)
            rules.append((self._api, self._api.on(journal_writes, late, nth=2)))

        proxy, match = self._where(point, name)
        row = point.row
        does = Call(fail, at=row.at) if row.store_fails else Fell(strike, at=row.at)
        rules.append((proxy, proxy.on(match, does, times=1)))
        await act
        await asyncio.wait_for(struck.wait(), DEADLINE_S)
        await daemon.kill()
        for where, rule in rules:
            where.remove(rule)
        assert daemon.surprises() == []
        self._env.daemons.remove(daemon)

    def _where(self, point: CrashPoint, name: str) -> tuple[FaultProxy, Match]:
        """The request at which the daemon is killed, and the proxy that sees it."""
        row, (word, _) = point.row, self._vendor.resources[point.resource]
        if row.state is not None:
            wanted = (point.resource, row.state.value, name)
            return self._api, Match(where=lambda one: wanted in _recorded(one))
        if row.deletes:
            return self._cloud, Match(method="DELETE", path=f"/{word}/[^/]+$")
        return self._cloud, Match(method="POST", path=f"/{word}$")

    @property
    def _has_groups(self) -> bool:
        return PLACEMENT_GROUP in self._vendor.resources

    # --- objects ----------------------------------------------------------------------------

    async def _create(self, path: str, name: str, *, made_of: str = "small") -> None:
        spec: Mapping[str, Any] = {"type": "LoadBalancer", "ports": [{"port": 80}]}
        meta = {"name": name, "annotations": dict(self._pool.annotations)}
        body: Mapping[str, Any] = {"metadata": meta, "spec": spec}
        if path == MACHINES:
            made = {"metadata": {"name": name}, "spec": machines.of(made_of)}
            body = {**machines.TYPE, "kind": "Machine", **made}
        await self._env.cluster.create(path, body)

    async def _lose(self, path: str) -> None:
        """Remove the finalizers of an owner, and delete it."""
        cluster = self._env.cluster
        if await cluster.get(path) is not None:
            await cluster.patch(path, {"metadata": {"finalizers": None}}, kind="merge")
        if await cluster.get(path) is not None:
            await cluster.delete(path)

    # --- the verdict ------------------------------------------------------------------------

    async def _states(self, name: str) -> Mapping[str, set[str]]:
        """The resources of an owner in the journal, and their states."""
        found: dict[str, set[str]] = defaultdict(set)
        for page in await self._env.cluster.items(CONFIG_MAPS):
            for entry in journals.entries_in(page):
                if entry["owner"]["name"] == name:
                    found[entry["resource"]].add(entry["state"])
        return found

    def _counts(self) -> Counter[str]:
        """How many resources a table has beside those that stay."""
        return Counter(table for table, _ in self._vendor.ids() - self._kept)

    def _is_there_once(self, point: CrashPoint) -> bool:
        """Whether the cloud has each resource of an owner once."""
        counts, is_service = self._counts(), point.owners == SERVICES
        return all(
            counts[table] == ((resource in self._vendor.of_services) is is_service)
            for resource, (_, table) in self._vendor.resources.items()
        )

    @property
    def _unfinished(self) -> Set[str]:
        """The resources that may stay an intent after a kill, though they exist.

        A Service whose address was written is not ensured before it changes, and only that records
        its parts. Its load balancer, with which they are deleted, is always recorded.
        """
        return {*self._vendor.of_services} - {LOAD_BALANCER}

    async def _is_recorded(
        self, point: CrashPoint, name: str, *, but: Set[str] = frozenset()
    ) -> bool:
        states = await self._states(name)
        unrecorded = {kind for kind, found in states.items() if found != {CREATED.value}}
        return bool(states) and unrecorded <= but and self._is_there_once(point)

    async def _is_served(self, point: CrashPoint, path: str) -> bool:
        owner = await self._env.cluster.get(path) or {}
        address = (owner.get("status") or {}).get("loadBalancer", {}).get("ingress")
        is_served = bool(address or owner.get("spec", {}).get("providerID"))
        return is_served and self._is_there_once(point)

    async def _is_over(self, path: str, name: str) -> bool:
        """Whether all resources of an owner are gone, and nothing else is."""
        if self._vendor.ids() != self._kept or await self._env.cluster.get(path) is not None:
            return False
        return set[str]().union(*(await self._states(name)).values()) <= {REMOVED.value}

    async def _has_bystander(self) -> bool:
        states = await self._states(BYSTANDER)
        is_whole = {LOAD_BALANCER, SERVER} <= states.keys()
        return is_whole and set[str]().union(*states.values()) == {CREATED.value}

    async def _start(self) -> None:
        self._daemon = await self._env.start(
            **self._vendor.how, proxy=self._api, module=hurried.__name__
        )
        await self._daemon.says("journal opened")


def _recorded(exchange: Exchange) -> set[tuple[str, str, str]]:
    """Resource, state and name of the owner of each entry that a request writes."""
    if exchange.method not in ("POST", "PUT") or not exchange.path.startswith(CONFIG_MAPS):
        return set()
    entries = journals.entries_in(exchange.json())
    return {(one["resource"], one["state"], one["owner"]["name"]) for one in entries}
