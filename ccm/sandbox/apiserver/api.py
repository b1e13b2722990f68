"""The verbs on objects, without HTTP: get, list, create, update, patch, delete.

Every call runs to its end without awaiting, so no two writes can interleave: reading,
judging and storing are one step, and a conflict can only come from what the client
itself states (a `resourceVersion` or a precondition).
"""

from __future__ import annotations

import bisect
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from ccm.sandbox.apiserver import (
    admit,
    decode,
    deletion,
    errors,
    jsonpatch,
    kinds,
    ledger,
    listing,
    patches,
    query,
    scalars,
    schema,
    services,
)
from ccm.sandbox.apiserver import store as stores

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)

START_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
"""Namespaces that kube-apiserver itself creates."""

_RETURNED_WHEN_DELETED = (kinds.PODS, kinds.SERVICES, kinds.SERVICE_ACCOUNTS, kinds.NAMESPACES)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a request is about; `name` is empty for a collection, `subresource` mostly."""

    kind: kinds.Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> str:
        """The object's key in the store."""
        return f"{self.namespace}/{self.name}" if self.kind.namespaced else self.name

    @property
    def is_status(self) -> bool:
        """True for the status sub-resource."""
        return self.subresource == "status"


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
        cluster_ips: Sequence[ledger.Network] = ledger.CLUSTER_IPS,
    ) -> None:
        self.store = store
        self._numbers = ledger.Ledger(cluster_ips)
        self._port = 0
        for entry in store.collection(kinds.SERVICES):
            self._numbers.hold(entry.key, entry.body())
        for name in START_NAMESPACES:
            if store.get(kinds.NAMESPACES, name) is None:
                body = decode.clean(kinds.NAMESPACES, {"metadata": {"name": name}}, [])
                self._keep(
                    kinds.NAMESPACES,
                    name,
                    admit.create(kinds.NAMESPACES, "", body, self._numbers),
                    dry_run=False,
                )

    def publish(self, port: int) -> None:
        """Keep the Service that stands for this server, which listens on that port."""
        self._port = port
        target = Target(kind=kinds.SERVICES, namespace="default", name=services.KUBERNETES)
        wanted = services.for_the_api_server(self._numbers.first_address, port)
        found = decode.clean(kinds.SERVICES, wanted, [])
        old = self.store.get(target.kind, target.key)
        if old is None:
            self._create(target, found, [], query.WriteOptions())
        else:
            self._store_update(target, found, old, [], query.WriteOptions())

    def get(self, target: Target) -> stores.Entry:
        """One object.

        Raises:
            ApiError: 404, it does not exist.
        """
        entry = self.store.get(target.kind, target.key)
        if entry is None:
            raise errors.not_found(target.kind.resource, target.name)
        return entry

    def list_page(self, target: Target, options: query.ListOptions) -> listing.Page:
        """Objects of a kind, of one namespace if the target has one.

        Raises:
            ApiError: 410, the wanted revision has expired.
        """
        collection = self.store.collection(target.kind)
        revision = self.store.revision
        if options.page is not None:
            revision = options.page.rv
        elif options.is_exact and options.revision is not None:
            revision = options.revision
        try:
            entries = collection.at(revision)
        except stores.HistoryExpiredError as error:
            raise listing.expired(paged=options.page is not None) from error
        if options.page is not None:
            start = bisect.bisect_left(entries, options.page.start, key=lambda entry: entry.key)
            entries = entries[start:]
        if target.namespace:
            prefix = f"{target.namespace}/"
            entries = [entry for entry in entries if entry.key.startswith(prefix)]
        return listing.cut(entries, revision, options)

    def create(
        self, target: Target, body: bytes, content_type: str, options: query.WriteOptions
    ) -> Written:
        """Store a new object.

        Raises:
            ApiError: the object is refused or exists.
        """
        found, warnings = decode.new_object(target.kind, body, content_type, options)
        if target.kind is kinds.REVIEWS:
            found["status"] = {"allowed": True}
            entry = stores.trial_entry(target.kind, "", found)
            return Written(entry=entry, created=True, warnings=tuple(warnings))
        return self._create(target, found, warnings, options)

    def update(
        self, target: Target, body: bytes, content_type: str, options: query.WriteOptions
    ) -> Written:
        """Replace an object, or its status.

        Raises:
            ApiError: the object is refused, gone or not the one the client has seen.
        """
        kind = target.kind
        found, warnings = decode.new_object(kind, body, content_type, options)
        _check_name(target, found)
        metadata = found["metadata"]
        if kind is kinds.LEASES and not metadata.get("resourceVersion"):
            cause = errors.bad_value(
                "metadata.resourceVersion", 0, "must be specified for an update"
            )
            # The real server says the plural here.
            named = dataclasses.replace(kind.resource, kind=kind.plural)
            raise errors.invalid(named, target.name, [cause])
        old = self.get(target)
        uid = old.body()["metadata"]["uid"]
        if metadata.get("uid", uid) != uid:
            raise errors.conflict(
                kind.resource,
                target.name,
                f"Precondition failed: UID in precondition: {metadata['uid']}, "
                f"UID in object meta: {uid}",
            )
        return self._store_update(target, found, old, warnings, options)

    def patch(
        self, target: Target, body: bytes, content_type: str, options: query.WriteOptions
    ) -> Written:
        """Patch an object or its status; an apply patch creates what does not exist.

        Apply is a create or a strategic merge: who owns which field is not tracked, so
        there are no ownership conflicts and nothing is removed by leaving it out.

        Raises:
            ApiError: the patch or the patched object is refused, or the object is gone.
        """
        if content_type not in PATCH_TYPES:
            raise errors.unsupported_media_type()
        try:
            patch, twice = decode.parse(body, content_type)
        except ValueError as error:
            raise errors.bad_request(str(error)) from error
        if content_type == APPLY_PATCH and not options.field_manager:
            cause = errors.required("fieldManager", "is required for apply patch")
            raise errors.invalid_options([cause])
        old = self.store.get(target.kind, target.key)
        if old is None and content_type == APPLY_PATCH and not target.subresource:
            patch.setdefault("metadata", {}).setdefault("name", target.name)
            raw = json.dumps(patch).encode()
            found, warnings = decode.new_object(target.kind, raw, "application/json", options)
            return self._create(target, found, warnings, options)
        if old is None:
            raise errors.not_found(target.kind.resource, target.name)
        found = _apply_patch(target.kind, old.body(), patch, content_type)
        unknown: list[str] = []
        shown = _shown(patch)
        try:
            cleaned = decode.clean(target.kind, found, unknown, known=old.body())
        except scalars.WrongTypeError as error:
            raise errors.invalid_patch(shown, str(error)) from error
        warnings = decode.check_fields(
            options, unknown, twice, lambda text: errors.invalid_patch(shown, text)
        )
        _check_name(target, cleaned)
        return self._store_update(target, cleaned, old, warnings, options)

    def delete(self, target: Target, options: deletion.Options) -> Written:
        """Delete an object; one with finalizers is only marked as being deleted.

        Raises:
            ApiError: it does not exist, or a precondition does not hold.
        """
        old = self.get(target)
        body = old.body()
        deletion.check_preconditions(target.kind, target.name, body["metadata"], options)
        if options.dry_run:
            return Written(entry=old, deleted=not body["metadata"].get("finalizers"))
        if target.kind is kinds.NAMESPACES:
            return self._delete_namespace(target, body)
        if not body["metadata"].get("finalizers"):
            return self._remove(target, body)
        return self._mark_deleted(target, old, body)

    def delete_collection(
        self, target: Target, selection: query.ListOptions, options: deletion.Options
    ) -> listing.Page:
        """Delete every object that is selected; returns what was selected."""
        page = self.list_page(target, selection)
        for entry in page.entries:
            namespace, _, name = entry.key.rpartition("/")
            one = dataclasses.replace(target, namespace=namespace, name=name)
            if self.store.get(one.kind, one.key) is not None:
                self.delete(one, options)
        return page

    def _create(
        self,
        target: Target,
        found: dict[str, Any],
        warnings: list[str],
        options: query.WriteOptions,
    ) -> Written:
        kind = target.kind
        if kind.namespaced:
            self._check_alive(target, found["metadata"].get("name", ""))
        if found["metadata"].get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        body = admit.create(kind, target.namespace, found, self._numbers)
        name = body["metadata"]["name"]
        key = dataclasses.replace(target, name=name).key
        taken = self.store.get(kind, key)
        if taken is not None:
            ending = "deletionTimestamp" in taken.body()["metadata"]
            raise errors.already_exists(kind.resource, name, ending=ending)
        entry = self._keep(kind, key, body, dry_run=options.dry_run)
        told = (*warnings, *_warnings(kind, body))
        return Written(entry=entry, created=True, warnings=told)

    def _check_alive(self, target: Target, name: str) -> None:
        namespace = self.store.get(kinds.NAMESPACES, target.namespace)
        if namespace is None:
            raise errors.not_found(kinds.NAMESPACES.resource, target.namespace)
        if namespace.fields["status.phase"] == "Terminating":
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {target.namespace} is being terminated",
                "field": "metadata.namespace",
            }
            why = (
                f"unable to create new content in namespace {target.namespace} because it is "
                "being terminated"
            )
            raise errors.forbidden(target.kind.resource, name, why, {"causes": [cause]})

    def _store_update(
        self,
        target: Target,
        found: dict[str, Any],
        old: stores.Entry,
        warnings: list[str],
        options: query.WriteOptions,
    ) -> Written:
        before = old.body()
        stated = found["metadata"].get("resourceVersion")
        if stated and stated != before["metadata"]["resourceVersion"]:
            raise errors.conflict(target.kind.resource, target.name)
        body = admit.update(target.kind, found, before, self._numbers, status=target.is_status)
        told = (*warnings, *(() if target.is_status else _warnings(target.kind, body)))
        if "deletionTimestamp" in before["metadata"] and not body["metadata"].get("finalizers"):
            return dataclasses.replace(self._finish_deletion(target, body), warnings=told)
        if body == before:
            return Written(entry=old, warnings=told)
        entry = self._keep(target.kind, target.key, body, dry_run=options.dry_run)
        return Written(entry=entry, warnings=told)

    def _keep(
        self, kind: kinds.Kind, key: str, body: dict[str, Any], *, dry_run: bool
    ) -> stores.Entry:
        if dry_run:
            return stores.trial_entry(kind, key, body)
        if kind is kinds.SERVICES:
            self._numbers.hold(key, body)
        return self.store.put(kind, key, body)

    def _remove(self, target: Target, body: dict[str, Any]) -> Written:
        entry = self.store.remove(target.kind, target.key, body)
        if target.kind is kinds.SERVICES:
            self._numbers.hold(target.key, None)
            if self._port and (target.namespace, target.name) == ("default", services.KUBERNETES):
                self.publish(self._port)
        if target.kind.namespaced:
            self._finish_namespace(target.namespace)
        return Written(entry=entry, deleted=True)

    def _mark_deleted(self, target: Target, old: stores.Entry, body: dict[str, Any]) -> Written:
        metadata = body["metadata"]
        if "deletionTimestamp" in metadata:
            return Written(entry=old)
        metadata["deletionTimestamp"] = admit.now()
        metadata["deletionGracePeriodSeconds"] = 0
        if metadata.get("generation"):
            metadata["generation"] += 1
        return Written(entry=self.store.put(target.kind, target.key, body))

    def _finish_deletion(self, target: Target, body: dict[str, Any]) -> Written:
        if target.kind is kinds.NAMESPACES:
            return self._delete_namespace(target, body)
        return self._remove(target, body)

    def _delete_namespace(self, target: Target, body: dict[str, Any]) -> Written:
        """Do the namespace controller's work: empty it, then let it go."""
        if body["status"].get("phase") != "Terminating":
            body["metadata"].setdefault("deletionTimestamp", admit.now())
            body["status"]["phase"] = "Terminating"
        entry = self.store.put(kinds.NAMESPACES, target.name, body)
        for kind in kinds.KINDS:
            if kind.namespaced:
                inside = Target(kind=kind, namespace=target.name)
                self.delete_collection(inside, query.ListOptions(), deletion.Options())
        self._finish_namespace(target.name)
        return Written(entry=entry)

    def _finish_namespace(self, name: str) -> None:
        entry = self.store.get(kinds.NAMESPACES, name)
        if entry is None or entry.fields["status.phase"] != "Terminating":
            return
        prefix = f"{name}/"
        for kind in kinds.KINDS:
            if kind.namespaced and self.store.collection(kind).has_prefix(prefix):
                return
        body = entry.body()
        if not body["metadata"].get("finalizers"):
            self.store.remove(kinds.NAMESPACES, name, body)


def is_returned_when_deleted(kind: kinds.Kind) -> bool:
    """Whether a deletion answers with the object, and not with a Status."""
    return kind in _RETURNED_WHEN_DELETED


def _apply_patch(
    kind: kinds.Kind, current: dict[str, Any], patch: Any, content_type: str
) -> dict[str, Any]:
    apply: Callable[[], Any]
    if content_type == JSON_PATCH:
        apply = lambda: jsonpatch.apply(current, patch)  # noqa: E731
    elif not isinstance(patch, dict):
        raise errors.bad_request("the patch is not an object")
    elif content_type == MERGE_PATCH:
        apply = lambda: patches.merge(current, patch)  # noqa: E731
    else:
        apply = lambda: patches.strategic(  # noqa: E731
            schema.kubernetes(), kind.kind, current, patch
        )
    try:
        found = apply()
    except patches.BadPatchError as error:
        raise errors.bad_request(f"error decoding patch: {error}") from error
    except patches.UnprocessablePatchError as error:
        raise errors.unprocessable() from error
    if not isinstance(found, dict):
        raise errors.unprocessable()
    return found


def _check_name(target: Target, found: dict[str, Any]) -> None:
    name = found["metadata"].get("name", "")
    if name != target.name:
        raise errors.bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )


def _warnings(kind: kinds.Kind, body: dict[str, Any]) -> list[str]:
    return list(services.warnings(body)) if kind is kinds.SERVICES else []


def _shown(patch: Any) -> str:
    return json.dumps(patch, separators=(",", ":"))
