"""Blocks deletions that result from the deletion of a CustomResourceDefinition (CRD).

When a user deletes a CRD, the API server deletes all objects of that kind, as if the user had
deleted each of them. Without the guard, uninstalling a chart would delete all VMs.
"""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import Any

from ccm.base import log
from ccm.kube.client import Resource
from ccm.kube.errors import Forbidden, KubeError
from ccm.kube.resources import CRDS, ResourceKind
from ccm.model import CustomResourceDefinition, ObjectReference
from ccm.model.meta import KubeObject
from ccm.model.names import ANNOTATION_ALLOW_DELETION, REASON_DELETION_HELD, WARNING
from ccm.model.times import parse_optional_time
from ccm.runtime.controller import ReconcileResult
from ccm.runtime.deletions import DeletionBlocks, DeletionRecord
from ccm.runtime.object_status import ControllerFacts
from ccm.runtime.writer import Recorder

SKEW = timedelta(seconds=2)
"""An object counts as deleted before its CRD only if its deletionTimestamp is at least this much
earlier. Timestamps have whole seconds, and may come from two API servers; etcd warns if their
clocks differ by more than one second."""

GATHER_TURNS = 10
"""Iterations of the event loop before a read of the CRD, so that one read serves all deletions that
arrive together."""

INTERVAL_S = 0.05
"""Minimum seconds between two reads of a CRD. The deletion of a CRD deletes thousands of objects,
and the guard needs a read that began after the deletion of the object in question."""

CONFIRM_S = 5.0
"""Seconds between two Forbidden responses that prove that we lack the permission to read a CRD. A
starting API server refuses every request until it has read the roles."""

BLOCKED_S = 10.0
"""Seconds for which a CRD that blocks deletions is not read again. A deletion of a CRD cannot be
undone, but a user may add the annotation that allows the deletions."""

RECHECK = ReconcileResult(after_s=2 * BLOCKED_S, idle=True)
"""Result of a reconcile that deletes nothing, because the deletion of its object is blocked."""

REASON = "crd_deleted"
"""Value of the label `reason` in the metric of blocked deletions."""

_log = log.logger("machines")


def crd_name(kind: ResourceKind[Any]) -> str:
    """Return the name of the CRD of a kind."""
    return f"{kind.plural}.{kind.group}"


def was_deleted_with(obj: KubeObject, crd: CustomResourceDefinition) -> bool:
    """Return whether the deletion of an object may result from the deletion of its CRD."""
    deleted = parse_optional_time(obj.metadata.deletion_timestamp)
    if deleted is None:
        return crd.is_deleting
    created, crd_created = (
        parse_optional_time(item.metadata.creation_timestamp) for item in (obj, crd)
    )
    if created and crd_created and created < crd_created - SKEW and deleted < crd_created + SKEW:
        # The object is older than the CRD: the deletion of a former CRD of the same name may have
        # deleted the object.
        return True
    crd_deleted = parse_optional_time(crd.metadata.deletion_timestamp)
    if crd_deleted is None:
        return crd.is_deleting
    return deleted > crd_deleted - SKEW


class CRDGuard:
    """Guard that blocks the deletions of objects that may result from the deletion of their CRD.

    Args:
        kind: kind of the objects.
        crds: client for live reads of CRDs.
        events: recorder of the event about the CRD.
        record: list of blocked deletions that `kube-ccm doctor` shows; None = do not list them.
    """

    def __init__(
        self,
        kind: ResourceKind[Any],
        crds: Resource[CustomResourceDefinition],
        events: Recorder,
        record: DeletionRecord | None = None,
    ) -> None:
        self._kind = kind
        self._crds = crds
        self._events = events
        self._holds = DeletionBlocks(kind.kind, events, record)
        self._confirmed: set[str] = set()
        """UIDs of objects whose deletion is allowed: the deletion of the CRD did not cause it, or a
        user allows it."""
        self._blocked: dict[str, ObjectReference] = {}
        """UID -> reference of an object whose deletion is blocked."""
        self._lock = asyncio.Lock()
        """Held during a read of the CRD: one read serves all deletions that wait for the lock."""
        self._reads = 0
        """Number of reads so far."""
        self._read_at = -math.inf
        self._answer: CustomResourceDefinition | KubeError | None = None
        self._had_right = self._lacks_right = False

    def facts(
        self, obj: KubeObject | None, key: str, *, namespace: str, flag: str
    ) -> ControllerFacts:
        """Return facts for the object's status: a foreign namespace, or a blocked deletion."""
        its_namespace = key.partition("/")[0]
        if its_namespace != namespace:
            return ControllerFacts(
                foreign=f"it is in namespace {its_namespace}, but --{flag} is {namespace}"
            )
        is_blocked = obj is not None and obj.uid in self._blocked
        return ControllerFacts(blocked=cause(self._kind) if is_blocked else "")

    async def blocks(self, obj: KubeObject) -> bool:
        """Return whether the deletion of this object is blocked.

        If so, the caller must delete nothing for the object. Without permission to read the CRD, no
        deletion is blocked.

        Raises:
            KubeError: the CRD cannot be read.
        """
        if obj.uid in self._confirmed:
            return False
        crd = self._recent_blocking(obj) or await self._read()
        if isinstance(crd, Forbidden):
            self._release(obj.uid)
            return False
        if _is_blocking(crd, obj):
            self._block(crd, obj)
            return True
        self._confirmed.add(obj.uid)
        self._release(obj.uid)
        return False

    def forget(self, uid: str) -> None:
        """Forget a deleted object."""
        self._confirmed.discard(uid)
        self._release(uid)

    def _recent_blocking(self, obj: KubeObject) -> CustomResourceDefinition | Forbidden | None:
        """Return the result of the last read if it is recent enough to reuse; None = read again.

        A CRD is reused only if it blocks the deletion. Forbidden is reused only once it is certain
        that we lack the permission.
        """
        if asyncio.get_running_loop().time() - self._read_at >= BLOCKED_S:
            return None
        match self._answer:
            case Forbidden() if self._lacks_right:
                return self._answer
            case CustomResourceDefinition() if _is_blocking(self._answer, obj):
                return self._answer
        return None

    async def _read(self) -> CustomResourceDefinition | Forbidden:
        """Read the CRD; Forbidden = we lack the permission.

        A read from before the object's deletion proves nothing: the CRD may have been deleted
        after that read.

        Raises:
            KubeError: the CRD cannot be read.
        """
        time, before = asyncio.get_running_loop().time, self._reads
        async with self._lock:
            # If the number of reads has changed, another call has read the CRD since this call
            # began: reuse that result.
            if self._reads == before:
                await asyncio.sleep(max(0, self._read_at + INTERVAL_S - time()))
                for _ in range(GATHER_TURNS):
                    await asyncio.sleep(0)
                self._reads, self._read_at = self._reads + 1, time()
                self._answer = await self._asked()
        match self._answer:
            case CustomResourceDefinition():
                return self._answer
            case Forbidden() if self._lacks_right:
                return self._answer
            case KubeError():
                # Also for Forbidden if we had the permission before: the role may have been deleted
                # together with the CRD.
                raise self._answer.with_traceback(None)
        raise AssertionError

    async def _asked(self) -> CustomResourceDefinition | KubeError:
        name = crd_name(self._kind)
        answer = await self._got(name)
        if isinstance(answer, Forbidden) and not (self._had_right or self._lacks_right):
            await asyncio.sleep(CONFIRM_S)
            answer = await self._got(name)
            if isinstance(answer, Forbidden):
                self._lacks_right = True
                _log.warning(
                    "CRD unreadable, its deletion would delete all VMs",
                    crd=name,
                    error=str(answer),
                    advice="grant get on the CRD, as manifests/components/machines/rbac.yaml does",
                )
        if isinstance(answer, CustomResourceDefinition):
            self._had_right, self._lacks_right = True, False
        return answer

    async def _got(self, name: str) -> CustomResourceDefinition | KubeError:
        try:
            return await self._crds.get(name)
        except KubeError as error:
            return error

    def _block(self, crd: CustomResourceDefinition, obj: KubeObject) -> None:
        if not self._blocked:
            text = f"{cause(self._kind)}; {advice(self._kind)}"
            _log.warning("deletions blocked, their CRD was deleted", crd=crd.name)
            self._events.event(CRDS.reference(crd), WARNING, REASON_DELETION_HELD, text)
        self._blocked[obj.uid] = reference = self._kind.reference(obj)
        self._holds.block(reference, REASON, "")

    def _release(self, uid: str) -> None:
        if (reference := self._blocked.pop(uid, None)) is not None:
            self._holds.unblock(reference)


def cause(kind: ResourceKind[Any]) -> str:
    """Return the reason of blocked deletions, for users."""
    return (
        f"{kind.kind} objects were deleted together with their CustomResourceDefinition; their "
        "nodes and VMs are kept"
    )


def advice(kind: ResourceKind[Any]) -> str:
    """Return the advice to users about blocked deletions."""
    return (
        'recover the objects as "A deleted CustomResourceDefinition" in manifests/README.md says; '
        f"or, to delete their VMs: kubectl annotate crd {crd_name(kind)} "
        f"{ANNOTATION_ALLOW_DELETION}=true"
    )


def _is_blocking(crd: CustomResourceDefinition, obj: KubeObject) -> bool:
    return not crd.allows_deletion and was_deleted_with(obj, crd)
