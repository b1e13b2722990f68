"""Requests to the verbs, without HTTP; bodies are given as Python has them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ccm.sandbox.apiserver import api, errors, kinds, listing, query, routes, store

PLAIN = query.WriteOptions()


class Requests:
    """Requests to the API of one store."""

    def __init__(self, objects: store.Store | None = None, **options: Any) -> None:
        self.store = objects or store.Store()
        self.api = api.Api(self.store, **options)
        self.warnings: tuple[str, ...] = ()

    def create(
        self, kind: kinds.Kind, name: str, options: query.WriteOptions = PLAIN, /, **body: Any
    ) -> dict[str, Any]:
        """A new object, in the namespace `default` unless its metadata name another."""
        metadata = {"name": name, **body.pop("metadata", {})}
        target = at(kind, namespace=metadata.get("namespace", "default"))
        raw = json.dumps({"metadata": metadata, **body}).encode()
        written = self.api.create(target, raw, "application/json", options)
        self.warnings = written.warnings
        return written.entry.body()

    def patch(
        self,
        target: routes.Target,
        body: Any,
        content_type: str = api.MERGE_PATCH,
        options: query.WriteOptions = PLAIN,
    ) -> api.Written:
        """A patch of an object or a part of it."""
        return self.api.patch(target, json.dumps(body).encode(), content_type, options)

    def update(self, target: routes.Target, body: dict[str, Any]) -> dict[str, Any]:
        """An object, or its part, in place of another."""
        raw = json.dumps(body).encode()
        return self.api.update(target, raw, "application/json", PLAIN).entry.body()

    def delete(self, target: routes.Target, **options: Any) -> api.Written:
        """A deletion."""
        return self.api.delete(target, query.DeleteOptions(**options))

    def keys(self, target: routes.Target, **options: Any) -> list[str]:
        """The keys of a list."""
        return [entry.key for entry in self.page(target, **options).entries]

    def page(self, target: routes.Target, **options: Any) -> listing.Page:
        """A list."""
        wanted = query.ListOptions(**options)
        return listing.page(self.store, target.kind, target.namespace, wanted)


def at(kind: kinds.Kind, name: str = "", part: str = "", namespace: str = "") -> routes.Target:
    """What a request is about; the namespace is `default` unless told otherwise."""
    space = (namespace or "default") if kind.namespaced else ""
    return routes.Target(kind=kind, namespace=space, name=name, subresource=part)


def refused(code: int, reason: str, text: str = "") -> Any:
    """A context in which a request must be refused so."""

    def check(error: errors.ApiError) -> bool:
        return (error.code, error.reason) == (code, reason)

    return pytest.raises(errors.ApiError, match=re.escape(text) or None, check=check)
