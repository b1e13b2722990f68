"""A reload to a provider of another project is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import pytest

from ccm.app import controllers, options
from ccm.app.controllers import ControllerRunner
from ccm.app.health import DaemonState
from ccm.app.provider import ProviderHolder
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import errors
from ccm.cloud.interface import Cloud
from ccm.cloud.types import InstanceListing, InstanceMetadata, InstanceRecord, Power
from ccm.kube.informer import Informer
from ccm.model import Node
from ccm.runtime.controller import DONE, Controller, ReconcileResult
from ccm.runtime.manifest import Manifest
from ccm.testing import builders
from ccm.testing.clock import settle
from tests.support.configmap import Api
from tests.support.fakecloud import FakeCloud

pytestmark = pytest.mark.virtual_time


class Project(FakeCloud):
    """A cloud that knows some nodes by name; `error` when it answers nothing."""

    def __init__(self, *known: str) -> None:
        super().__init__()
        self.known = set(known)
        self.broken: Exception | None = None
        self.subjects: list[str] = []

    async def instance_exists(self, node: Node) -> bool:
        self.subjects.append(node.name)
        if self.broken is not None:
            raise self.broken
        return node.name in self.known


class Daemon:
    """A leader: its nodes, its provider, and one controller that fails with `error`."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        project: Project,
        *,
        node_selector: str = "",
        **parts: Any,
    ) -> None:
        self.nodes: Informer[Node] = Informer(None, resource="nodes")  # type: ignore[arg-type]
        self.tried: list[str] = []
        self.error: Exception | None = None
        self.busy = asyncio.Event()
        self.busy.set()
        self.controller = Controller("paper", queue="paper", reconcile=self._reconcile)
        caches = Mock(run=asyncio.Event().wait, wait_synced=lambda _s: asyncio.Event().wait())
        caches.informer_for.return_value = self.nodes
        monkeypatch.setattr(controllers, "SharedInformers", Mock(return_value=caches))
        one: Manifest[Any] = Manifest(
            name="paper",
            alias="paper",
            client="paper",
            metric="paper",
            permissions=(),
            missing_interface=lambda _cloud: "",
            build=lambda context, _flags: self._build(context),
        )
        monkeypatch.setattr(controllers, "build_enabled", self._enabled)
        monkeypatch.setattr(controllers, "MANIFESTS", (one,))
        self._one = one
        clients = Mock()
        clients.named.return_value.resource.return_value = Api()
        given = options.parse([f"--node-selector={node_selector}"])
        self.work = ControllerRunner(given, clients, Mock(), DaemonState())
        self.holder = ProviderHolder(on_exchanged=self.work.retry_now)
        self.cloud = self._cloud(project, **parts)
        self.context: Any = None

    def _enabled(self, _options: object, context: Any, *_: object) -> Any:
        self.context = context
        return [(self._one, self.controller)]

    def _build(self, _context: object) -> Controller:
        return self.controller

    async def _reconcile(self, key: str) -> ReconcileResult:
        self.tried.append(key)
        error = self.error
        await self.busy.wait()
        if error is not None:
            raise error
        return DONE

    def _cloud(self, project: Project, **parts: Any) -> Cloud:
        return Cloud(name="fake", instances=project, **parts)

    def node(self, name: str, *, ready: str = "True") -> None:
        made = builders.node(name, provider_id=f"fake://{name}", ready=ready)
        self.nodes.upsert(made)

    async def reload(self, project: Project, **parts: Any) -> None:
        """The configuration file names another project."""
        cloud = self._cloud(project, **parts)
        await self.holder.exchange(lambda: nullcontext(cloud), self.work.check_provider)

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        handle = await self.holder.open(lambda: nullcontext(self.cloud))
        running = spawn(self.work.run(handle, Mock()), name="controllers")
        await settle()
        try:
            yield
        finally:
            await cancel_and_join(running)
            await self.holder.close()


async def test_a_reload_to_a_project_without_our_nodes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Corrected credentials are accepted."""
    old, empty, right = Project("a", "b"), Project("x"), Project("b")
    daemon = Daemon(monkeypatch, old)
    for name in "ab":
        daemon.node(name)
    async with daemon.leading():
        with pytest.raises(errors.FailedPrecondition, match="no instance of the nodes a, b"):
            await daemon.reload(empty)
        assert daemon.holder.handle.cloud.instances is old

        await daemon.reload(right)
        assert daemon.holder.handle.cloud.instances is right


@pytest.mark.parametrize("ready", ["True", "False"])
async def test_a_reload_with_expired_old_credentials_depends_on_ready_nodes(
    monkeypatch: pytest.MonkeyPatch, ready: str
) -> None:
    """The old provider cannot confirm its nodes, but a ready node counts as confirmed.

    Without a ready node, the new provider is accepted.
    """
    old, new = Project("a"), Project()
    old.broken = errors.Unauthenticated("expired")
    daemon = Daemon(monkeypatch, old)
    daemon.node("a", ready=ready)
    async with daemon.leading():
        refused = pytest.raises(errors.FailedPrecondition) if ready == "True" else nullcontext()
        with refused:
            await daemon.reload(new)

        assert daemon.holder.handle.cloud.instances is (old if ready == "True" else new)


async def test_a_reload_is_accepted_when_the_old_provider_knows_no_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor do nodes of another cloud prevent it."""
    new = Project()
    daemon = Daemon(monkeypatch, Project())
    daemon.node("a")
    daemon.nodes.upsert(builders.node("b", provider_id="aws://b"))
    async with daemon.leading():
        await daemon.reload(new)

        assert daemon.holder.handle.cloud.instances is new


@pytest.mark.parametrize("listed", [False, True])
async def test_a_reload_checks_only_nodes_of_this_daemon(
    monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    """Not those of another cloud or outside of --node-selector."""
    old, new = Project("a", "b", "c"), Project("a")
    daemon = Daemon(monkeypatch, old, node_selector="mine")
    daemon.nodes.upsert(builders.node("b", provider_id="aws://b"))
    daemon.nodes.upsert(builders.node("c", provider_id="fake://c"))
    if listed:
        made = builders.node("a", provider_id="fake://a", labels={"mine": ""})
        daemon.nodes.upsert(made)
    async with daemon.leading():
        await daemon.reload(new)

        assert {*old.subjects, *new.subjects} == ({"a"} if listed else set())
        assert daemon.holder.handle.cloud.instances is new


async def test_a_reload_to_a_provider_with_other_id_schemes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot know our nodes, so it is not asked."""
    old, new = Project("a"), Project("a")
    daemon = Daemon(monkeypatch, old)
    daemon.node("a")
    async with daemon.leading():
        with pytest.raises(errors.FailedPrecondition):
            await daemon.reload(new, schemes=("blue",))
        assert new.subjects == []


async def test_a_reload_is_refused_for_a_confirmed_node_without_provider_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old project confirmed the node; the new one does not know it."""
    daemon = Daemon(monkeypatch, Project("a"))
    daemon.nodes.upsert(builders.node("a", ready="True"))
    async with daemon.leading():
        daemon.holder.handle.confirmed.add(daemon.nodes.store.list()[0].uid)
        with pytest.raises(errors.FailedPrecondition):
            await daemon.reload(Project("x"))


async def test_a_reload_retries_failed_and_running_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the failure of the old provider was permanent or temporary."""
    daemon = Daemon(monkeypatch, Project())
    async with daemon.leading():
        for error in (
            errors.PermissionDenied("no"),
            errors.InvalidArgument("never"),
            errors.ImplementedElsewhere("not mine"),
        ):
            daemon.error = error
            daemon.controller.queue.add(type(error).__name__)
            await settle()
        daemon.error = errors.PermissionDenied("no")
        daemon.busy.clear()
        daemon.controller.queue.add("slow")
        await settle()
        daemon.tried.clear()
        daemon.error = None

        await daemon.reload(Project())
        daemon.busy.set()
        await settle()

        assert sorted(daemon.tried) == [
            "ImplementedElsewhere",
            "InvalidArgument",
            "PermissionDenied",
            "slow",
        ]


class Listing:
    """A bulk listing with scripted content, which waits for `free`."""

    def __init__(self, *known: str) -> None:
        self.known = known
        self.free = asyncio.Event()
        self.free.set()

    async def list_instances(self) -> InstanceListing:
        await self.free.wait()
        found = [
            InstanceRecord(
                name=name,
                power=Power.RUNNING,
                metadata=InstanceMetadata(provider_id=f"fake://{name}"),
            )
            for name in self.known
        ]
        return InstanceListing(instances=found, requests=1)


@pytest.mark.parametrize("when", ["before", "under way"])
async def test_listings_of_the_old_provider_are_discarded_after_a_reload(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Whether they were complete or still running."""
    old = Listing("a")
    daemon = Daemon(monkeypatch, Project("a"), inventory=old)
    daemon.node("a")
    async with daemon.leading():
        inventory = daemon.context.inventory
        asked = {"node": daemon.nodes.store.list()[0], "single_requests": 9}
        if when == "under way":
            old.free.clear()
        ask = spawn(inventory.find(**asked), name="ask")
        await settle()

        await daemon.reload(Project("a"), inventory=Listing())
        old.free.set()

        found = await ask
        assert (found is None) is (when == "under way")
        assert await inventory.find(**asked) is None
