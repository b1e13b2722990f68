"""ConfigMaps and Secrets of an API server, with resource versions, in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ccm.persistence.kubestore import ANNOTATION


class Status(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Cluster:
    """Client of an API server with any number of namespaces.

    Attributes:
        held: path -> object.
        requests: method and path of each request.
        status: HTTP status of all answers; 0 = as usual.
    """

    def __init__(self) -> None:
        self.held: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.requests: list[tuple[str, str]] = []
        self.status = 0

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        self.requests.append((method, path))
        if self.status:
            raise Status(self.status)
        given = json.loads(body) if body else {}
        if method == "GET" and query is not None:
            return json.dumps(self.listed(path, query)).encode()
        path = f"{path}/{given['metadata']['name']}" if method == "POST" else path
        found = self.held.get(path)
        if method == "POST" and found:
            raise Status(409)
        if method != "POST" and not found:
            raise Status(404)
        wanted = given.get("metadata", given.get("preconditions", {})).get("resourceVersion")
        if found and wanted not in (None, found["metadata"]["resourceVersion"]):
            raise Status(409)
        if method in ("POST", "PUT"):
            self.version += 1
            given["metadata"]["resourceVersion"] = str(self.version)
            self.held[path] = given
        elif method == "DELETE":
            del self.held[path]
        return json.dumps(self.held.get(path, {})).encode()

    def listed(self, folder: str, query: Mapping[str, str]) -> dict[str, Any]:
        start, most = int(query.get("continue", 0)), int(query["limit"])
        wanted = dict(term.split("=") for term in query["labelSelector"].split(","))
        items = [
            item
            for path, item in self.held.items()
            if path.startswith(f"{folder}/")
            and wanted.items() <= item["metadata"].get("labels", {}).items()
        ]
        more = {"continue": str(start + most)} if len(items) > start + most else {}
        return {"metadata": more, "items": items[start : start + most]}

    def stored(self) -> list[dict[str, Any]]:
        """Objects but the markers of the stores."""
        return [
            item
            for item in self.held.values()
            if ANNOTATION in item["metadata"].get("annotations", {})
        ]
