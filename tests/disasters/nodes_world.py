"""A cluster, clouds that lie, and daemons that delete nodes: in memory and in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.errors import CloudError
from ccm.cloud.lookup import InstanceLookup, NodeOwnership
from ccm.controllers.nodelifecycle.controller import KIND, NodeLifecycleController
from ccm.controllers.nodelifecycle.plan import DeletionRules
from ccm.model import Node, Taint, names
from ccm.model.times import format_time
from ccm.runtime.deletions import DeletionBlocks, DeletionRecord, blocked_deletions
from ccm.testing.builders import CREATED, uninitialized_taint
from ccm.testing.builders import node as build
from ccm.testing.clock import VirtualTimeLoop, advance
from tests.support.cluster import Cluster, missing, moved
from tests.support.configmap import Api
from tests.support.fakecloud import FakeCloud

MINUTE_S = 60.0
OWNER = "lease"
GOING = Taint(key=names.TAINT_AUTOSCALER_DELETION, effect=names.EFFECT_NO_SCHEDULE)
NEW = uninitialized_taint()


class HarmDone(Exception):
    """Under the policy of the reference, the disaster did harm; the test ends here."""


class Vms(FakeCloud):
    """A cloud with instances; `lie` says of whom it denies that it is there.

    `broken` is what it answers instead of anything else.
    """

    def __init__(self, name: str = "fake") -> None:
        super().__init__(name=name)
        self.there: set[str] = set()
        self.lie: Callable[[str], bool] = lambda _: False
        self.broken: Callable[[str], CloudError | None] = lambda _: None

    async def instance_exists(self, node: Node) -> bool:
        await self._log("instance-exists", node.provider_id or node.name)
        subject = node.provider_id.removeprefix(f"{self.name}://") or node.name
        error = self.broken(subject)
        if error is not None:
            raise error
        return subject in self.there and not self.lie(subject)


class ApiServer(Cluster):
    """Deletes for good, and only what has the UID; while it `lags`, its watch is silent."""

    def __init__(self, deleting: Callable[[str], None]) -> None:
        super().__init__()
        self._deleting = deleting
        self.lags = False

    async def delete(self, name: str, *, namespace: str = "", uid: str | None = None) -> None:
        self.requests.append("DELETE")
        refusal = self.refuse()
        if refusal is not None:
            raise refusal
        if name in self.deleted and self.lags:
            raise missing()
        if self[name].uid != uid:
            raise moved()
        self._deleting(name)
        self.deleted.append(name)
        if not self.lags:
            self.drop(name)

    def catch_up(self) -> None:
        """The cache hears of all deletions."""
        self.lags = False
        for name in self.deleted:
            self.drop(name)


@dataclass
class World:
    """Cluster and cloud around the daemons.

    Attributes:
        reference: whether they work as the Go reference does.
        precious: nodes whose machines run, or that are no business of ours.
        harmed: those of them that were deleted.
    """

    reference: bool = False
    cloud: Vms = field(default_factory=Vms)
    config_map: Api = field(default_factory=Api)
    precious: set[str] = field(default_factory=set)
    harmed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api = ApiServer(lambda name: self.harmed.extend({name} & self.precious))
        self.handle = CloudClient(self.cloud.cloud())

    @contextlib.asynccontextmanager
    async def daemon(
        self, handle: CloudClient | None = None, *, node_selector: str = "", **rules: Any
    ) -> AsyncIterator[NodeLifecycleController]:
        """One that leads, until its end."""
        handle = handle or self.handle
        record = DeletionRecord(self.config_map, namespace="kube-system", owner=OWNER)
        made = NodeLifecycleController(
            nodes=self.api.informer,
            api=self.api,
            lookup=InstanceLookup(handle),
            slots=record,
            holds=DeletionBlocks(KIND, self.api, record),
            events=self.api,
            workers=16,
            rules=DeletionRules(
                ownership=NodeOwnership.from_flag(handle.cloud.provider_schemes, node_selector),
                reference=self.reference,
                **rules,
            ),
        )
        keeper = spawn(record.run(), name="record")
        try:
            async with self.api.running(made.controller):
                with contextlib.suppress(HarmDone):
                    yield made
        finally:
            await cancel_and_join(keeper)

    def node(
        self,
        name: str,
        *,
        ready: bool = True,
        there: bool = True,
        scheme: str | None = "fake",
        taints: Collection[Taint] = (),
        young: bool = False,
        **facts: Any,
    ) -> Node:
        """A node and its machine, which runs unless it is not `there`; put as it is now."""
        if there:
            self.cloud.there.add(name)
            self.precious.add(name)
        return self.api.put(
            build(
                name,
                provider_id=f"{scheme}://{name}" if scheme else "",
                ready="True" if ready else "Unknown",
                taints=list(taints),
                created=format_time(clock.now()) if young else CREATED,
                **facts,
            )
        )

    def nodes(self, count: int, **facts: Any) -> list[str]:
        """So many of them: n0, n1 and so on."""
        return [self.node(f"n{number}", **facts).name for number in range(count)]

    def gone(self, *gone: str) -> None:
        """Their machines are deleted in the cloud, and their kubelets silent."""
        self.cloud.there -= {*gone}
        self.precious -= {*gone}
        self.silent(*gone)

    def silent(self, *silent: str, ready: str = "Unknown") -> None:
        """Their kubelets are not heard of; the machines run on."""
        for name in silent:
            old = self.api[name]
            self.api.put(
                build(
                    name,
                    provider_id=old.provider_id,
                    ready=ready,
                    taints=list(old.taints),
                    labels=old.labels,
                    annotations=old.annotations,
                    uid=old.uid,
                    created=old.metadata.creation_timestamp or "",
                )
            )

    @property
    def left(self) -> set[str]:
        """The nodes that are there."""
        return set(self.api.informer.store.keys())

    @property
    def held(self) -> dict[str, str]:
        """Blocked deletions as `doctor` finds them: node -> reason."""
        found = blocked_deletions(self.config_map.map, OWNER).get(KIND)
        return {one.name: one.reason for one in found.objects} if found else {}

    def unharmed(self) -> None:
        """Nothing was harmed; under the reference's policy it must have been, and all ends."""
        assert bool(self.harmed) is self.reference, self.harmed
        if self.reference:
            raise HarmDone

    async def tells_the_truth(self, *gone: str, within_s: float) -> None:
        """The cloud answers correctly again; these VMs and, in time, their nodes are deleted."""
        self.cloud.lie = lambda _: False
        await self.goes(*gone, within_s=within_s)

    async def goes(self, *gone: str, within_s: float) -> None:
        """These VMs are deleted, and their nodes are deleted in time."""
        self.gone(*gone)
        await self.until_gone(gone, within_s=within_s)

    async def until_gone(self, those: Iterable[str], *, within_s: float) -> None:
        """Wait until these nodes are deleted, and nothing else that matters."""
        start, awaited = clock.monotonic(), {*those}
        while awaited & self.left and clock.monotonic() - start < within_s:
            await advance(1.0)
        assert awaited & self.left == set(), self.held
        assert self.harmed == []
        await advance(15.0)  # so that blocked deletions are on record
        assert awaited & self.held.keys() == set()


def set_wall_clock(by: timedelta) -> None:
    """Set the wall clock."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.start += by
