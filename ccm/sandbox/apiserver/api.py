"""The verbs on objects, without HTTP: get, list, create, update, patch, delete.

Every call runs to its end without awaiting, so no two writes can interleave: reading,
judging and storing are one step, and a conflict can only come from what the client
itself states (a `resourceVersion` or a precondition).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ccm.sandbox.apiserver import (
    admit,
    allocate,
    decode,
    errors,
    evictions,
    kinds,
    listing,
    patches,
    query,
    scalars,
    scale,
    services,
)
from ccm.sandbox.apiserver import store as stores
from ccm.sandbox.apiserver.routes import Target

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)

_PLAIN = query.WriteOptions()

START_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
"""Namespaces that kube-apiserver itself creates."""


_ADMIN = {
    "username": "kubernetes-admin",
    "groups": ["system:masters", "system:authenticated"],
}

_TOKENS = "tokenreviews.authentication.k8s.io"
_ACCESS = "subjectaccessreviews.authorization.k8s.io"

REVIEWS: dict[str, dict[str, Any]] = {
    "selfsubjectaccessreviews.authorization.k8s.io": {"allowed": True},
    "selfsubjectreviews.authentication.k8s.io": {"userInfo": _ADMIN},
}
"""What is asked about oneself -> the answer, whoever asks: nothing of it is stored."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The outcome of a write; `deleted` when the object is gone for good."""

    entry: stores.Entry
    created: bool = False
    deleted: bool = False
    warnings: tuple[str, ...] = ()


class Api:
    """The verbs on one store."""

    def __init__(
        self,
        store: stores.Store,
        *,
        cluster_ips: allocate.Networks = allocate.CLUSTER_IPS,
        token: str = "",
    ) -> None:
        self._token = token
        self.store = store
        self._numbers = allocate.Allocator(cluster_ips)
        self._port = 0
        for entry in store.collection(kinds.SERVICES):
            self._numbers.hold(entry.key, services.numbers(entry.body()["spec"]))
        for name in START_NAMESPACES:
            if store.get(kinds.NAMESPACES, name) is None:
                body = decode.clean(kinds.NAMESPACES, {"metadata": {"name": name}}, [])
                self._create(Target(kind=kinds.NAMESPACES), (body, []))

    def publish(self, port: int) -> None:
        """Keep the Service that stands for this server, which listens on that port."""
        self._port = port
        target = Target(kind=kinds.SERVICES, namespace="default", name=services.KUBERNETES)
        wanted = services.for_the_api_server(self._numbers.first_address, port)
        given: decode.Decoded = (decode.clean(kinds.SERVICES, wanted, []), [])
        old = self.store.get(target.kind, target.key)
        if old is None:
            self._create(target, given)
        else:
            self._store_update(target, given, old)

    def get(self, target: Target) -> stores.Entry:
        """One object, or its scale.

        Raises:
            ApiError: 404, it does not exist.
        """
        entry = self.store.get(target.kind, target.key)
        if entry is None:
            raise errors.not_found(target.kind, target.name)
        return scale.shown(target.kind, entry) if target.subresource == "scale" else entry

    def create(
        self, target: Target, body: bytes, content_type: str, options: query.WriteOptions
    ) -> Written:
        """Store a new object.

        Raises:
            ApiError: the object is refused or exists.
        """
        given = decode.new_object(target.kind, decode.parse(body, content_type), options)
        status = self._reviewed(target.kind.qualified, given[0].get("spec") or {})
        if status is not None:
            metadata = {"creationTimestamp": scalars.now()}
            answer = {**given[0], "metadata": metadata, "status": status}
            return Written(entry=stores.entry_of(target.kind, "", answer), created=True)
        return self._create(target, given, options)

    def _reviewed(self, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The answer to a question about somebody; None: it is none."""
        if kind == _TOKENS:
            is_known = not self._token or spec.get("token") == self._token
            return {"authenticated": True, "user": _ADMIN} if is_known else {"error": "unknown"}
        if kind == _ACCESS:
            return {"allowed": "system:masters" in (spec.get("groups") or ())}
        return REVIEWS.get(kind)

    def update(
        self, target: Target, body: bytes, content_type: str, options: query.WriteOptions
    ) -> Written:
        """Replace an object, its status or its scale.

        Raises:
            ApiError: the object is refused, gone or not the one the client has seen.
        """
        decoded = decode.parse(body, content_type)
        if target.subresource == "scale":
            return self._rescale(target, decoded, options)
        kind = target.kind
        given = decode.new_object(kind, decoded, options)
        _check_name(target, given)
        metadata = given[0]["metadata"]
        if kind is kinds.LEASES and not metadata.get("resourceVersion"):
            cause = errors.required("metadata.resourceVersion", "must be specified for an update")
            raise errors.invalid(kind, target.name, [cause])
        old = self.get(target)
        uid = old.body()["metadata"]["uid"]
        if metadata.get("uid", uid) != uid:
            why = f"Precondition failed: the UID is {uid}, and not {metadata['uid']}"
            raise errors.conflict(kind, target.name, why)
        return self._store_update(target, given, old, options)

    def patch(
        self, target: Target, body: bytes, content_type: str, options: query.WriteOptions
    ) -> Written:
        """Patch an object or a part of it; an apply patch creates what does not exist.

        Apply is a create or a strategic merge: who owns which field is not tracked, so
        there are no ownership conflicts and nothing is removed by leaving it out.

        Raises:
            ApiError: the patch or the patched object is refused, or the object is gone.
        """
        kind = target.kind
        if content_type not in PATCH_TYPES or (kind.is_custom and content_type == STRATEGIC_PATCH):
            raise errors.ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type")
        patch = decode.parse(body, content_type)
        is_apply = content_type == APPLY_PATCH
        if is_apply and not options.field_manager:
            raise errors.invalid_options([errors.required("fieldManager")])
        old = self.store.get(kind, target.key)
        if old is None and is_apply and not target.subresource:
            given = decode.new_object(kind, patch, options)
            given[0]["metadata"].setdefault("name", target.name)
            return self._create(target, given, options)
        found = _patched(kind, self.get(target).body(), patch, content_type)
        if old is None or target.subresource == "scale":
            return self._rescale(target, found, options)
        given = decode.checked(kind, found, options, errors.invalid_patch, old.body())
        _check_name(target, given)
        return self._store_update(target, given, old, options)

    def delete(self, target: Target, options: query.DeleteOptions) -> Written:
        """Delete an object; one with finalizers is only marked as being deleted.

        Raises:
            ApiError: it does not exist, or a precondition does not hold.
        """
        old = self.get(target)
        body = old.body()
        metadata = body["metadata"]
        for key, wanted in (("uid", options.uid), ("resourceVersion", options.resource_version)):
            if wanted not in ("", metadata[key]):
                why = f"its {key} is {metadata[key]}, and not {wanted} as in the precondition"
                raise errors.conflict(target.kind, target.name, why)
        if options.dry_run:
            return Written(entry=old, deleted=not metadata.get("finalizers"))
        if target.kind in _OWNERS:
            return self._delete_owner(target, body)
        if target.kind is kinds.PODS and evictions.begin_end(body, options.grace_s):
            return Written(entry=self.store.put(target.kind, target.key, body))
        if target.kind is kinds.PODS and evictions.is_ending(body, options.grace_s):
            return Written(entry=old)
        if not metadata.get("finalizers"):
            return self._remove(target, body)
        if "deletionTimestamp" in metadata and not metadata.get("deletionGracePeriodSeconds"):
            return Written(entry=old)
        metadata["deletionTimestamp"] = scalars.now()
        metadata["deletionGracePeriodSeconds"] = 0
        if metadata.get("generation"):
            metadata["generation"] += 1
        return Written(entry=self.store.put(target.kind, target.key, body))

    def evict(self, target: Target, body: bytes, content_type: str) -> None:
        """Delete a Pod as far as its disruption budget allows it.

        Raises:
            ApiError: it does not, or there is no such Pod.
        """
        given = decode.parse(body, content_type)
        if (given.get("metadata") or {}).get("name") != target.name:
            raise errors.bad_request("name in URL does not match name in Eviction object")
        pod = dataclasses.replace(target, subresource="")
        wanted = msgspec.json.encode(given.get("deleteOptions") or {})
        options = decode.delete_options(wanted, "application/json", {})
        evictions.take(self.store, self.get(pod).body())
        self.delete(pod, options)

    def delete_collection(
        self, target: Target, selection: query.ListOptions, options: query.DeleteOptions
    ) -> listing.Page:
        """Delete every object that is selected; returns what was selected."""
        page = listing.page(self.store, target.kind, target.namespace, selection)
        for entry in page.entries:
            namespace, _, name = entry.key.rpartition("/")
            one = dataclasses.replace(target, namespace=namespace, name=name)
            if self.store.get(one.kind, one.key) is not None:
                self.delete(one, options)
        return page

    def _create(
        self, target: Target, given: decode.Decoded, options: query.WriteOptions = _PLAIN
    ) -> Written:
        kind, (found, warnings) = target.kind, given
        if kind.namespaced:
            self._check_alive(target, found["metadata"].get("name", ""))
        if kind.is_custom:
            definition = self.store.get(kinds.DEFINITIONS, kind.qualified)
            if definition is not None and b'"deletionTimestamp"' in definition.raw:
                raise errors.crd_terminating("create")
        if found["metadata"].get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        body = admit.create(kind, target.namespace, found, self._numbers)
        name = body["metadata"]["name"]
        target = dataclasses.replace(target, name=name)
        taken = self.store.get(kind, target.key)
        if taken is not None:
            ending = "deletionTimestamp" in taken.body()["metadata"]
            raise errors.already_exists(kind, name, ending=ending)
        entry = self._keep(target, body, options)
        return Written(entry=entry, created=True, warnings=(*warnings, *_warnings(target, body)))

    def _check_alive(self, target: Target, name: str) -> None:
        namespace = self.store.get(kinds.NAMESPACES, target.namespace)
        if namespace is None:
            raise errors.not_found(kinds.NAMESPACES, target.namespace)
        if namespace.fields["status.phase"] == "Terminating":
            raise errors.terminating(target.kind, name, target.namespace)

    def _store_update(
        self,
        target: Target,
        given: decode.Decoded,
        old: stores.Entry,
        options: query.WriteOptions = _PLAIN,
    ) -> Written:
        before, (found, warnings) = old.body(), given
        stated = found["metadata"].get("resourceVersion")
        if stated and stated != before["metadata"]["resourceVersion"]:
            raise errors.conflict(target.kind, target.name)
        is_status = target.subresource == "status"
        body = admit.update(target.kind, found, before, self._numbers, status=is_status)
        told = (*warnings, *_warnings(target, body))
        ends = "deletionTimestamp" in before["metadata"] and not evictions.is_ending(before, None)
        if ends and not body["metadata"].get("finalizers"):
            finish = self._delete_owner if target.kind in _OWNERS else self._remove
            return dataclasses.replace(finish(target, body), warnings=told)
        if body == before:
            return Written(entry=old, warnings=told)
        entry = self._keep(target, body, options)
        return Written(entry=entry, warnings=told)

    def _rescale(self, target: Target, wanted: Any, options: query.WriteOptions) -> Written:
        whole = dataclasses.replace(target, subresource="")
        old = self.get(whole)
        body = scale.changed(target.kind, old.body(), wanted)
        written = self._store_update(whole, (body, []), old, options)
        return dataclasses.replace(written, entry=scale.shown(target.kind, written.entry))

    def _keep(self, target: Target, body: Any, options: query.WriteOptions) -> stores.Entry:
        if options.dry_run:
            return stores.entry_of(target.kind, target.key, body)
        if target.kind is kinds.SERVICES:
            self._numbers.hold(target.key, services.numbers(body["spec"]))
        return self.store.put(target.kind, target.key, body)

    def _remove(self, target: Target, body: dict[str, Any]) -> Written:
        entry = self.store.remove(target.kind, target.key, body)
        if target.kind is kinds.SERVICES:
            self._numbers.hold(target.key, ())
            if self._port and (target.namespace, target.name) == ("default", services.KUBERNETES):
                self.publish(self._port)
        if target.kind.namespaced:
            self._finish_owner(kinds.NAMESPACES, target.namespace)
        if target.kind.is_custom:
            self._finish_owner(kinds.DEFINITIONS, target.kind.qualified)
        return Written(entry=entry, deleted=True)

    def _delete_owner(self, target: Target, body: dict[str, Any]) -> Written:
        """Empty a namespace, or take away a definition's objects; then let it go."""
        body["metadata"].setdefault("deletionTimestamp", scalars.now())
        if target.kind is kinds.NAMESPACES:
            body["status"]["phase"] = "Terminating"
        entry = self.store.put(target.kind, target.name, body)
        for inside in list(self._inside(target.kind, target.name)):
            self.delete_collection(inside, query.ListOptions(), query.DeleteOptions())
        self._finish_owner(target.kind, target.name)
        return Written(entry=entry)

    def _finish_owner(self, owner: kinds.Kind, name: str) -> None:
        entry = self.store.get(owner, name)
        if entry is None or b'"deletionTimestamp"' not in entry.raw:
            return
        for inside in self._inside(owner, name):
            prefix = f"{inside.namespace}/" if inside.namespace else ""
            if self.store.collection(inside.kind).has_prefix(prefix):
                return
        body = entry.body()
        if not body["metadata"].get("finalizers"):
            self.store.remove(owner, name, body)

    def _inside(self, owner: kinds.Kind, name: str) -> Iterator[Target]:
        """The collections that end with their owner."""
        for kind in self.store.kinds:
            if owner is kinds.NAMESPACES and kind.namespaced:
                yield Target(kind=kind, namespace=name)
            elif owner is kinds.DEFINITIONS and kind.is_custom and kind.qualified == name:
                yield Target(kind=kind)


_OWNERS = (kinds.NAMESPACES, kinds.DEFINITIONS)


def _patched(
    kind: kinds.Kind, current: dict[str, Any], patch: Any, content_type: str
) -> dict[str, Any]:
    try:
        if content_type == JSON_PATCH:
            found = patches.json_patch(current, patch)
        elif not isinstance(patch, dict):
            raise patches.BadPatchError("the patch is not an object")
        elif content_type == MERGE_PATCH or kind.is_custom:
            found = patches.merge(current, patch)
        else:
            found = patches.strategic(kind.shape, current, patch)
        if not isinstance(found, dict):
            raise patches.UnprocessablePatchError("it leaves no object")
    except patches.BadPatchError as error:
        raise errors.bad_request(f"error decoding patch: {error}") from error
    except patches.UnprocessablePatchError as error:
        text = "the server rejected our request due to an error in our request"
        raise errors.ApiError(422, "Invalid", text) from error
    return found


def _check_name(target: Target, given: decode.Decoded) -> None:
    name = given[0]["metadata"].get("name", "")
    if name != target.name:
        text = f"the name of the object ({name}) does not match the name on the URL"
        raise errors.bad_request(f"{text} ({target.name})")


def _warnings(target: Target, body: dict[str, Any]) -> Iterator[str]:
    is_service = target.kind is kinds.SERVICES and not target.subresource
    return services.warnings(body) if is_service else iter(())
