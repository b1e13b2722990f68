"""Volumes of a Pod that left: waits until they are off its node, and on another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ccm.base import log
from ccm.cloud.errors import CloudError, Unimplemented
from ccm.cloud.machines import GetVolumeIDsRequest, MachineDriver
from ccm.kube.client import Client
from ccm.kube.errors import KubeError, NotFound
from ccm.kube.informer import Informer
from ccm.kube.resources import ATTACHMENTS, CLAIMS, NODE_VOLUMES, VOLUMES
from ccm.machines import drain
from ccm.machines.driver import Driver
from ccm.model import Pod
from ccm.model.meta import KubeObject
from ccm.runtime.lazy import RefCountedInformer, following

LOOKUP_TRIES = 3
LOOKUP_RETRY_S = 5.0
"""Tries to read a claim or volume, and the time between them (reference)."""

T = TypeVar("T", bound=KubeObject)
_log = log.logger("machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounted:
    """Volumes that are waited for.

    Attributes:
        volumes: names of the PersistentVolumes.
        ids: by which nodes know them.
    """

    volumes: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ids)


class Attachments:
    """Where volumes are.

    Args:
        driver: calls the driver.
        client: reads from the cluster.
    """

    def __init__(self, driver: Driver, client: Client) -> None:
        self._driver = driver
        self._client = client
        self._elsewhere = RefCountedInformer(
            lambda: Informer(client.resource(ATTACHMENTS), resource=ATTACHMENTS.plural)
        )

    async def of(self, pod: Pod, claims: Iterable[str]) -> Mounted:
        """Those behind a Pod's claims that the driver knows; what is missing is left out."""
        volumes: list[str] = []
        ids: list[str] = []
        for claim in claims:
            name, spec = await self._volume(pod, claim)
            found = await self._ids(spec) if spec else ()
            if found:
                volumes.append(name)
                ids.extend(found)
        return Mounted(volumes=tuple(volumes), ids=tuple(ids))

    async def detached(self, mounted: Mounted, node_name: str) -> None:
        """Return once the node reports none of them, or is gone."""
        source = self._client.resource(NODE_VOLUMES).where(f"metadata.name={node_name}")
        async with following(Informer(source, resource=NODE_VOLUMES.plural)) as nodes:

            def left() -> Collection[str]:
                node = nodes.store.get(node_name)
                return drain.still_attached(mounted.ids, node.attached) if node is not None else ()

            await _until(nodes, lambda: not left())

    async def reattached(self, mounted: Mounted, node_name: str) -> None:
        """Return once each of them is attached to another node."""
        async with self._elsewhere.use() as found:
            await _until(
                found,
                lambda: not drain.not_elsewhere(mounted.volumes, found.store.list(), node_name),
            )

    async def _volume(self, pod: Pod, claim: str) -> tuple[str, dict[str, Any]]:
        """Name and spec of the PersistentVolume behind a claim; empty where there is none."""
        for attempt in range(1, LOOKUP_TRIES + 1):
            try:
                bound = await self._client.resource(CLAIMS).get(claim, namespace=pod.namespace)
                if not bound.spec.volume_name:
                    return "", {}
                volume = await self._client.resource(VOLUMES).get(bound.spec.volume_name)
            except NotFound:
                return "", {}
            except KubeError as error:
                if attempt == LOOKUP_TRIES:
                    _log.warning("volume of a Pod is not waited for", pod=pod.key, error=str(error))
                await asyncio.sleep(LOOKUP_RETRY_S)
            else:
                return volume.name, volume.spec
        return "", {}

    async def _ids(self, spec: dict[str, Any]) -> Sequence[str]:
        request = GetVolumeIDsRequest(pv_specs=(spec,))
        try:
            return await self._driver.call(MachineDriver.get_volume_ids, request)
        except Unimplemented:
            return ()
        except CloudError as error:
            _log.warning("volume is not waited for", error=str(error))
            return ()


async def _until(informer: Informer[T], holds: Callable[[], bool]) -> None:
    """Return once it holds, told by a complete cache."""
    changed = asyncio.Event()

    def note(*_: object) -> None:
        changed.set()

    handler = informer.add_handler(name="drain", on_add=note, on_update=note, on_delete=note)
    try:
        while not informer.has_synced:
            with suppress(TimeoutError):
                await informer.wait_synced(60.0)
        while not holds():
            changed.clear()
            await changed.wait()
    finally:
        informer.remove_handler(handler)
