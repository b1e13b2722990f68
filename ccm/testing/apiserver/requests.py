"""Requests and responses, independent of their transport: paths, verbs, discovery.

`server` passes requests from HTTP, `transport` passes requests of clients in the same process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from ccm.testing.apiserver import api, errors, kinds, listing

VERSION = {
    "major": "1", "minor": "36", "gitVersion": "v1.36.3+ccm-sandbox", "gitCommit": "unknown",
    "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none",
    "compiler": "none", "platform": "linux/amd64",
}  # fmt: skip
"""The Kubernetes version whose behaviour this server follows."""

_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_OPENAPI = "/openapi/v3"
_CHECKED = {
    "parameters": [{"name": "fieldValidation", "in": "query"}],
    "responses": {"200": {"description": "OK"}},
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    """A JSON response to a request other than a watch."""

    body: bytes
    status: int = 200
    warnings: Sequence[str] = ()


class RequestHandler:
    """Dispatches requests to the verbs of an `Api`, and renders the responses."""

    def __init__(self, verbs: api.Api) -> None:
        self.verbs = verbs

    def watch(self, request: api.ApiRequest) -> AsyncIterator[bytes] | None:
        """Return the stream of a watch; None if the request is not a watch.

        Raises:
            StatusError: the request is refused.
        """
        target = parse(self.verbs.store.kinds, request.path)
        if target is None or _verb(target, request) != "watch":
            return None
        options = listing.list_options(target.kind, target.namespace, request.query)
        renderer = _renderer(target, request)
        return listing.stream(self.verbs.store, target.kind, options, renderer)

    def handle(self, request: api.ApiRequest) -> ApiResponse:
        """Process a request other than a watch.

        Raises:
            StatusError: the request is refused.
        """
        served = self.verbs.store.kinds
        target = parse(served, request.path)
        if target is None:
            document = _document(served, request.path)
            if document is None:
                raise errors.StatusError(404, "NotFound", "404 page not found")
            return ApiResponse(body=msgspec.json.encode(document))
        verb, renderer = _verb(target, request), _renderer(target, request)
        if verb == "get":
            return ApiResponse(body=renderer.render_object(self.verbs.get(target)))
        if verb in ("list", "deletecollection"):
            options = listing.list_options(target.kind, target.namespace, request.query)
            page = listing.page(self.verbs.store, target.kind, options)
            body = renderer.render_list(*page)
            if verb == "deletecollection":
                keys = (entry.key for entry in page[0])
                self.verbs.delete_all(target, keys, _delete_options(request))
            return ApiResponse(body=body)
        if verb == "delete":
            return self._delete(target, request, renderer)
        if target.subresource == kinds.EVICTION:
            self.verbs.evict(target, request)
            return _success(201, code=201)
        verb_methods = {
            "create": self.verbs.create,
            "update": self.verbs.update,
            "patch": self.verbs.patch,
        }
        written = verb_methods[verb](target, request)
        return ApiResponse(
            body=renderer.render_object(written.entry),
            status=201 if written.created else 200,
            warnings=written.warnings,
        )

    def _delete(
        self, target: api.RequestTarget, request: api.ApiRequest, renderer: listing.ObjectRenderer
    ) -> ApiResponse:
        written = self.verbs.delete(target, _delete_options(request))
        if not written.deleted or target.kind.is_returned_when_deleted:
            return ApiResponse(body=renderer.render_object(written.entry))
        uid = written.entry.body()["metadata"]["uid"]
        details = {**target.kind.details(target.name), "uid": uid}
        return _success(details=details)


def _success(status: int = 200, **more: Any) -> ApiResponse:
    body = msgspec.json.encode(errors.status_object("Success", **more))
    return ApiResponse(body=body, status=status)


def _delete_options(request: api.ApiRequest) -> api.DeleteOptions:
    return api.delete_options(request.decoded() if request.body else {}, request.query)


def _renderer(target: api.RequestTarget, request: api.ApiRequest) -> listing.ObjectRenderer:
    include = request.query.get("includeObject", "")
    return listing.renderer(target.kind, request.accept, include)


def _verb(target: api.RequestTarget, request: api.ApiRequest) -> str:
    verb = (_OBJECT_VERBS if target.name else _COLLECTION_VERBS).get(request.method, "")
    if verb == "list" and request.query.get("watch") in ("1", "true"):
        verb = "watch"
    part = target.subresource
    if part == kinds.EVICTION and request.method == "POST":
        verb = "create"
    allowed = target.kind.part_verbs(part) if part else target.kind.verbs
    everywhere = target.kind.namespaced and not target.namespace
    if verb not in allowed or (everywhere and verb not in ("list", "watch")):
        text = "the server does not allow this method on the requested resource"
        raise errors.StatusError(405, "MethodNotAllowed", text)
    return verb


def parse(served: kinds.Registry, path: str) -> api.RequestTarget | None:
    """Return the target of an API path; None if the path is not below a served group version.

    Raises:
        StatusError: 404, the group version has no such resource.
    """
    root, *steps = path.strip("/").split("/")
    group = steps.pop(0) if root == "apis" and steps else ""
    version = steps.pop(0) if root in ("api", "apis") and steps else ""
    steps = [step for step in steps if step]
    if not steps or len(steps) > 5 or not served.has_version(group, version):
        return None
    namespace = ""
    if steps[0] == "namespaces" and len(steps) > 2 and steps[2] not in ("status", "finalize"):
        _, namespace, *steps = steps
    plural, name, subresource = [*steps, "", ""][:3]
    kind = served.get(group, version, plural)
    if (
        kind is None
        or len(steps) > 3
        or (namespace and not kind.namespaced)
        or (name and kind.namespaced and not namespace)
        or subresource not in ("", *kind.subresources)
    ):
        text = "the server could not find the requested resource"
        raise errors.StatusError(404, "NotFound", text)
    return api.RequestTarget(kind=kind, namespace=namespace, name=name, subresource=subresource)


# --- discovery -----------------------------------------------------------------------------------


def _document(served: kinds.Registry, path: str) -> dict[str, Any] | None:
    groups: dict[str, list[str]] = {}
    for kind in served:
        if kind.version not in groups.setdefault(kind.group, []):
            groups[kind.group].append(kind.version)
    core = groups.pop("")
    if path == "/version":
        return VERSION
    if path == "/api":
        return {"kind": "APIVersions", "versions": core, "serverAddressByClientCIDRs": []}
    if path == "/apis":
        entries = [_group(group, versions) for group, versions in groups.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": entries}
    group = path.removeprefix("/apis/")
    if group in groups:
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, groups[group])}
    if path.startswith(_OPENAPI):
        return _openapi(served, path.removeprefix(_OPENAPI))
    resources = [
        resource for kind in served if kind.prefix == path for resource in _resources(kind)
    ]
    version = path.removeprefix("/apis/").removeprefix("/api/")
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version}
    return {**head, "resources": resources} if resources else None


def _group(group: str, names: list[str]) -> dict[str, Any]:
    versions = [{"groupVersion": f"{group}/{name}", "version": name} for name in names]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resources(kind: kinds.ServedKind) -> list[dict[str, Any]]:
    common = {"namespaced": kind.namespaced, "kind": kind.kind}
    words = {"shortNames": kind.short_names, "categories": kind.categories}
    optional = {key: value for key, value in words.items() if value}
    named = {"name": kind.plural, "singularName": kind.singular or kind.kind.lower(), **common}
    resources = [{**named, "verbs": kind.verbs, **optional}]
    for part in kind.subresources:
        named = {"name": f"{kind.plural}/{part}", "singularName": "", **common}
        if part == "scale":
            named |= {"group": "autoscaling", "version": "v1", "kind": "Scale"}
        if part == kinds.EVICTION:
            named |= {"group": "policy", "version": "v1", "kind": "Eviction"}
        resources.append({**named, "verbs": kind.part_verbs(part)})
    return resources


def _openapi(served: kinds.Registry, prefix: str) -> dict[str, Any] | None:
    """Return OpenAPI without schemas, which tells kubectl that the server validates fields.

    An empty prefix returns the index of documents. None = no kind has the prefix.
    """
    if not prefix:
        prefixes = dict.fromkeys(kind.prefix for kind in served)
        urls = {
            path_prefix.lstrip("/"): {"serverRelativeURL": _OPENAPI + path_prefix}
            for path_prefix in prefixes
        }
        return {"paths": urls}
    paths = {}
    for kind in served:
        if kind.prefix == prefix:
            named = {"group": kind.group, "version": kind.version, "kind": kind.kind}
            patch = {**_CHECKED, "x-kubernetes-group-version-kind": named}
            paths[f"{prefix}/{kind.plural}/{{name}}"] = {"patch": patch}
    head = {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]}}
    return {**head, "paths": paths} if paths else None
