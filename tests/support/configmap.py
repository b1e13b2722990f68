"""The record of deletions as an API server keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from ccm.kube.errors import ApiError, Conflict, NotFound
from ccm.model import ConfigMap
from ccm.runtime import deletions

KEY = "lease.Node.deletions"


class Api:
    """One ConfigMap, as an API server keeps it."""

    def __init__(self, data: Mapping[str, str] | None = None) -> None:
        self.map: ConfigMap | None = None
        self.requests: list[str] = []
        self.error: Exception | None = None
        self.lost: Exception | None = None
        if data is not None:
            self.put(data)

    def put(self, data: Mapping[str, str]) -> ConfigMap:
        """Somebody writes it."""
        version = int(self.map.resource_version) + 1 if self.map is not None else 1
        meta: dict[str, Any] = {"name": deletions.CONFIG_MAP_NAME, "uid": "u"}
        meta |= {"resourceVersion": str(version)}
        meta |= {"annotations": dict(self.map.annotations) if self.map is not None else None}
        self.map = msgspec.convert({"metadata": meta, "data": dict(data)}, ConfigMap)
        return self.map

    def annotate(self, key: str, value: str) -> None:
        """A person annotates it."""
        assert self.map is not None
        metadata = msgspec.structs.replace(
            self.map.metadata,
            annotations={key: value},
            resource_version=str(int(self.map.resource_version) + 1),
        )
        self.map = msgspec.structs.replace(self.map, metadata=metadata)

    @property
    def data(self) -> Mapping[str, str]:
        return (self.map.data or {}) if self.map is not None else {}

    @property
    def times(self) -> list[str]:
        """The deletions that are on record."""
        return msgspec.json.decode(self.data.get(KEY, "[]"), type=list[str])

    async def get(self, name: str, *, namespace: str) -> ConfigMap:
        await self._asked("get", name, namespace)
        if self.map is None:
            raise NotFound(status=404, reason="NotFound", message="no such config map")
        return self.map

    async def create(self, obj: ConfigMap, *, namespace: str) -> ConfigMap:
        await self._asked("create", obj.name, namespace)
        if self.map is not None:
            raise refused()
        return self._written(self.put(obj.data or {}))

    async def patch_merge(
        self, name: str, patch: Mapping[str, Any], *, namespace: str
    ) -> ConfigMap:
        await self._asked("patch", name, namespace)
        if self.map is None:
            raise NotFound(status=404, reason="NotFound", message="no such config map")
        bound = {"uid": self.map.uid, "resourceVersion": self.map.resource_version}
        if patch["metadata"] != bound:
            raise refused()
        merged = {**self.data, **patch["data"]}
        return self._written(self.put({k: text for k, text in merged.items() if text is not None}))

    async def _asked(self, verb: str, name: str, namespace: str) -> None:
        assert (name, namespace) == (deletions.CONFIG_MAP_NAME, "kube-system")
        self.requests.append(verb)
        await asyncio.sleep(0.1)
        if self.error is not None:
            raise self.error

    def _written(self, written: ConfigMap) -> ConfigMap:
        if self.lost is not None:
            raise self.lost
        return written


def refused() -> ApiError:
    return Conflict(status=409, reason="Conflict", message="modified")
