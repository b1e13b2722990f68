"""Nodes in memory: an API server that patches them, a cache that never lags, a recorder."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec

from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube.errors import Conflict, KubeError, NotFound
from ccm.kube.informer import Informer
from ccm.model import Node, ObjectReference
from ccm.runtime.controller import Controller
from ccm.testing.apiserver import patches, schema
from ccm.testing.clock import settle


def moved() -> Conflict:
    return Conflict(status=409, reason="Conflict", message="moved")


def missing() -> NotFound:
    return NotFound(status=404, reason="NotFound", message="gone")


def patched(before: Node, patch: Mapping[str, Any]) -> Node:
    """The node after a strategic merge patch, as the API server makes it."""
    shape, given = schema.kubernetes()["Node"], copy.deepcopy(dict(patch))
    return msgspec.convert(patches.strategic(shape, msgspec.to_builtins(before), given), Node)


class Cluster:
    """What a controller of nodes reads, writes and tells; writes fail as `refuse` says."""

    def __init__(self, *nodes: Node) -> None:
        self.informer: Informer[Node] = Informer(None, resource="nodes")  # type: ignore[arg-type]
        self.refuse: Callable[[], KubeError | None] = lambda: None
        self.requests: list[str] = []
        self.patches: list[tuple[str, Mapping[str, Any]]] = []
        self.deleted: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.version = 0
        for each in nodes:
            self.put(each)

    def put(self, node: Node) -> Node:
        """Store a node as the next version."""
        self.version += 1
        metadata = msgspec.structs.replace(node.metadata, resource_version=str(self.version))
        self.informer.upsert(msgspec.structs.replace(node, metadata=metadata))
        return self[node.name]

    def drop(self, name: str) -> None:
        """The node is deleted."""
        self.informer.remove(name, self.informer.store.get(name))

    def lose(self, name: str) -> None:
        """A new list lacks the node."""
        self.informer.remove(name)

    def __getitem__(self, name: str) -> Node:
        found = self.informer.store.get(name)
        if found is None:
            raise missing()
        return found

    @contextlib.asynccontextmanager
    async def running(self, controller: Controller) -> AsyncIterator[None]:
        """The controller at work; it must not end by itself."""
        self.informer.mark_synced()
        task = spawn(controller.run(), name="controller")
        try:
            await settle()
            yield
            assert not task.done()
        finally:
            await cancel_and_join(task)

    # --- what the controller uses -----------------------------------------------------------

    async def get(self, name: str, *, namespace: str = "") -> Node:
        self.requests.append("GET")
        return self[name]

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> Node:
        self.requests.append(f"PATCH {subresource}".strip())
        refusal = self.refuse()
        if refusal is not None:
            raise refusal
        bound, present = patch.get("metadata", {}), self[name]
        if bound.get("uid", present.uid) != present.uid:
            raise moved()
        if bound.get("resourceVersion", present.resource_version) != present.resource_version:
            raise moved()
        self.patches.append((name, patch))
        return self.put(patched(self[name], patch))

    patch_merge = patch_strategic  # never used for nodes

    async def delete(self, name: str, *, namespace: str = "", uid: str | None = None) -> None:
        """Noted only; the test drops the node when it likes."""
        self.deleted.append(name)

    def event(self, reference: ObjectReference, kind: str, reason: str, message: str) -> None:
        assert (reference.kind, reference.api_version) == ("Node", "v1")
        self.events.append((reason, message))
