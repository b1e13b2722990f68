"""The verbs on objects, without HTTP: get, create, update, patch, delete, evict.

Every call completes without awaiting, so that no two writes can interleave: reading, validating
and storing are one step. A conflict can only come from the client's own `resourceVersion` or
precondition.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import yaml

from ccm.base.parsing import parse_digits
from ccm.testing.apiserver import errors, kinds, patches, pods, protobuf, schema, services, tables
from ccm.testing.apiserver import store as stores

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PATCH_TYPES = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)

_YAML_TYPES = ("application/yaml", APPLY_PATCH)
_START_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")
_OWNERS = (kinds.NAMESPACES, kinds.DEFINITIONS)
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_SERVER_METADATA = (
    "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation",
    "resourceVersion",
)  # fmt: skip
_IMMUTABLE = ("name", "namespace", "uid")
_SET_ONCE_OF_NODES = ("podCIDRs", "providerID", "externalID")
_SCALE_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_ADMIN = {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]}
_SELF_REVIEWS: Mapping[str, Mapping[str, Any]] = {
    "SelfSubjectAccessReview": {"allowed": True},
    "SelfSubjectReview": {"userInfo": _ADMIN},
}

_Options = TypeVar("_Options", bound=msgspec.Struct)

CheckedObject = tuple[dict[str, Any], list[str]]
"""An object in stored form, and the warnings about its unknown fields."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    method: str
    path: str
    query: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes = b""
    content_type: str = JSON
    accept: str = ""

    def decoded(self) -> Any:
        """Return the decoded body.

        Raises:
            StatusError: the body does not match its content type.
        """
        try:
            if self.content_type == protobuf.CONTENT_TYPE:
                return protobuf.decode(schema.kubernetes(), self.body)
            is_yaml = self.content_type in _YAML_TYPES
            return yaml.safe_load(self.body) if is_yaml else json.loads(self.body)
        except (ValueError, yaml.YAMLError) as error:
            raise errors.bad_request(f"the request body cannot be decoded: {error}") from error


def parse_options(wanted: type[_Options], query: Mapping[str, str]) -> _Options:
    """Convert query parameters to options of the type `wanted`.

    Raises:
        StatusError: a parameter is malformed.
    """
    # Fields of `ListOptions` that no query parameter may set.
    params = {key: text for key, text in query.items() if text and key not in ("selector", "page")}
    try:
        return msgspec.convert(params, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise errors.bad_request(str(error)) from error


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Options of a create, update or patch."""

    field_validation: str = "Warn"
    dry_run: str = ""
    field_manager: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """Options of a deletion.

    `uid` and `resource_version` are preconditions; an empty one always holds. `grace_s`, in
    seconds, applies to Pods only.
    """

    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False
    grace_s: int | None = None


_PLAIN = WriteOptions()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestTarget:
    """Object or collection of a request.

    `name` is empty for a collection; `subresource` is empty for the object itself.
    """

    kind: kinds.ServedKind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> str:
        """Key of the object in the store."""
        return f"{self.namespace}/{self.name}" if self.kind.namespaced else self.name


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """Result of a write. `deleted`: the object was removed from the store."""

    entry: stores.StoredObject
    created: bool = False
    deleted: bool = False
    warnings: tuple[str, ...] = ()


class Api:
    """Verbs of the Kubernetes API, such as create and patch, on one object store.

    Args:
        cluster_ips: ranges of cluster IPs, one or two of different families.
        token: the token that a TokenReview accepts; empty = any.
        is_strict: whether to validate objects; False for copies of another server's objects.
    """

    def __init__(
        self,
        store: stores.ObjectStore,
        *,
        cluster_ips: services.Networks = services.CLUSTER_IPS,
        token: str = "",
        is_strict: bool = True,
    ) -> None:
        self.store = store
        self._token = token
        self._is_strict = is_strict
        self._numbers = services.Numbers(cluster_ips)
        self._port = 0
        for entry in store.collection(kinds.SERVICES):
            self._numbers.set_allocated(entry.key, services.numbers(entry.body()["spec"]))
        for name in _START_NAMESPACES:
            if store.get(kinds.NAMESPACES, name) is None:
                body = kinds.NAMESPACES.clean({"metadata": {"name": name}})
                self._create(RequestTarget(kind=kinds.NAMESPACES), (body, []))

    def publish(self, port: int) -> None:
        """Create or update the Service `kubernetes`, for this server on the given port."""
        self._port = port
        target = RequestTarget(kind=kinds.SERVICES, namespace="default", name=services.KUBERNETES)
        labels = {"component": "apiserver", "provider": services.KUBERNETES}
        # The first cluster IP belongs to the API server.
        address = str(next(iter(self._numbers.ranges.values()))[1])
        ports = [{"name": "https", "port": 443, "targetPort": port}]
        spec = {"clusterIP": address, "ports": ports}
        wanted = {"metadata": {"name": services.KUBERNETES, "labels": labels}, "spec": spec}
        given: CheckedObject = (kinds.SERVICES.clean(wanted), [])
        old = self.store.get(target.kind, target.key)
        if old is None:
            self._create(target, given)
        else:
            self._store_update(target, given, old)

    def get(self, target: RequestTarget) -> stores.StoredObject:
        """Return an object, or its scale.

        Raises:
            StatusError: 404, the object does not exist.
        """
        entry = self.store.get(target.kind, target.key)
        if entry is None:
            raise errors.not_found(target.kind, target.name)
        return _as_scale(target.kind, entry) if target.subresource == "scale" else entry

    def create(self, target: RequestTarget, request: ApiRequest) -> WriteResult:
        """Store a new object; a review, such as a TokenReview, is answered and not stored.

        Raises:
            StatusError: the object is invalid or already exists.
        """
        kind, options = target.kind, parse_options(WriteOptions, request.query)
        given = new_object(kind, request.decoded(), options)
        status = self._reviewed(kind, given[0].get("spec") or {})
        if status is not None:
            answer = {**given[0], "metadata": {"creationTimestamp": schema.now()}, "status": status}
            return WriteResult(entry=stores.entry_of(kind, "", answer), created=True)
        return self._create(target, given, options)

    def _reviewed(
        self, kind: kinds.ServedKind, spec: Mapping[str, Any]
    ) -> Mapping[str, Any] | None:
        """Return the status of a review; None if the kind is not a review."""
        if kind.kind == "TokenReview":
            is_known = not self._token or spec.get("token") == self._token
            return {"authenticated": True, "user": _ADMIN} if is_known else {"error": "unknown"}
        if kind.kind == "SubjectAccessReview":
            return {"allowed": "system:masters" in (spec.get("groups") or ())}
        return None if kind.is_custom else _SELF_REVIEWS.get(kind.kind)

    def update(self, target: RequestTarget, request: ApiRequest) -> WriteResult:
        """Replace an object, its status or its scale.

        Raises:
            StatusError: the object is invalid or absent, or its resource version is outdated.
        """
        decoded, options = request.decoded(), parse_options(WriteOptions, request.query)
        if target.subresource == "scale":
            return self._rescale(target, decoded, options)
        kind = target.kind
        given = new_object(kind, decoded, options)
        _check_name(target, given)
        metadata = given[0]["metadata"]
        if kind is kinds.LEASES and not metadata.get("resourceVersion"):
            raise errors.invalid(kind, target.name, [errors.required("metadata.resourceVersion")])
        old = self.get(target)
        uid = old.body()["metadata"]["uid"]
        if metadata.get("uid", uid) != uid:
            why = f"Precondition failed: UID is {uid}, expected {metadata['uid']}"
            raise errors.conflict(kind, target.name, why)
        return self._store_update(target, given, old, options)

    def patch(self, target: RequestTarget, request: ApiRequest) -> WriteResult:
        """Patch an object or a part of it; an apply patch creates a missing object.

        Apply is a create or a strategic merge: field ownership is not tracked. There are no
        conflicts of owners, and leaving a field out does not remove it.

        Raises:
            StatusError: the patch or the patched object is invalid, or the object is absent.
        """
        kind, content_type = target.kind, request.content_type
        if content_type not in PATCH_TYPES or (kind.is_custom and content_type == STRATEGIC_PATCH):
            raise errors.StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type")
        patch, options = request.decoded(), parse_options(WriteOptions, request.query)
        is_apply = content_type == APPLY_PATCH
        if is_apply and not options.field_manager:
            raise errors.bad_request("an apply patch needs a fieldManager")
        old = self.store.get(kind, target.key)
        if old is None and is_apply and not target.subresource:
            given = new_object(kind, patch, options)
            given[0]["metadata"].setdefault("name", target.name)
            return self._create(target, given, options)
        patched = _patched(kind, self.get(target).body(), patch, content_type)
        if old is None or target.subresource == "scale":
            return self._rescale(target, patched, options)

        def refuse(why: str) -> errors.StatusError:
            return errors.invalid(kind, target.name, [errors.StatusCause("patch", why)])

        given = check_object(kind, patched, options, refuse, old.body())
        _check_name(target, given)
        return self._store_update(target, given, old, options)

    def delete(self, target: RequestTarget, options: DeleteOptions) -> WriteResult:
        """Delete an object; with finalizers or a grace period, only set its deletionTimestamp.

        Raises:
            StatusError: the object does not exist, or a precondition does not hold.
        """
        old = self.get(target)
        body = old.body()
        metadata = body["metadata"]
        for key, wanted in (("uid", options.uid), ("resourceVersion", options.resource_version)):
            if wanted not in ("", metadata[key]):
                why = f"Precondition failed: {key} is {metadata[key]}, expected {wanted}"
                raise errors.conflict(target.kind, target.name, why)
        if options.dry_run:
            return WriteResult(entry=old, deleted=not metadata.get("finalizers"))
        if target.kind in _OWNERS:
            return self._delete_owner(target, body)
        if target.kind is kinds.PODS and pods.begin_grace(body, options.grace_s):
            return WriteResult(entry=self.store.put(target.kind, target.key, body))
        if target.kind is kinds.PODS and pods.has_grace(body, options.grace_s):
            return WriteResult(entry=old)
        if not metadata.get("finalizers"):
            return self._remove(target, body)
        if "deletionTimestamp" in metadata and not metadata.get("deletionGracePeriodSeconds"):
            return WriteResult(entry=old)
        metadata["deletionTimestamp"] = schema.now()
        metadata["deletionGracePeriodSeconds"] = 0
        if metadata.get("generation"):
            metadata["generation"] += 1
        return WriteResult(entry=self.store.put(target.kind, target.key, body))

    def evict(self, target: RequestTarget, request: ApiRequest) -> None:
        """Delete a Pod if its disruption budget allows it.

        Raises:
            StatusError: the budget does not allow the eviction, or the Pod does not exist.
        """
        eviction = request.decoded()
        if (eviction.get("metadata") or {}).get("name") != target.name:
            raise errors.bad_request("name in URL does not match name in Eviction object")
        pod = dataclasses.replace(target, subresource="")
        options = delete_options(eviction.get("deleteOptions") or {}, {})
        pods.count_eviction(self.store, self.get(pod).body())
        self.delete(pod, options)

    def delete_all(
        self, target: RequestTarget, names: Iterator[str], options: DeleteOptions
    ) -> None:
        """Delete objects of a collection by their keys; skip absent objects."""
        for key in names:
            namespace, _, name = key.rpartition("/")
            object_target = dataclasses.replace(target, namespace=namespace, name=name)
            if self.store.get(object_target.kind, object_target.key) is not None:
                self.delete(object_target, options)

    def _create(
        self, target: RequestTarget, given: CheckedObject, options: WriteOptions = _PLAIN
    ) -> WriteResult:
        kind, (cleaned, warnings) = target.kind, given
        if kind.namespaced and self._is_strict:
            self._check_alive(target, cleaned["metadata"].get("name", ""))
        if kind.is_custom:
            definition = self.store.get(kinds.DEFINITIONS, kind.qualified)
            if definition is not None and b'"deletionTimestamp"' in definition.raw:
                raise errors.StatusError(405, "MethodNotAllowed", "the definition is terminating")
        if cleaned["metadata"].get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        body = self._new(kind, target.namespace, cleaned)
        name = body["metadata"]["name"]
        target = dataclasses.replace(target, name=name)
        existing = self.store.get(kind, target.key)
        if existing is not None:
            ending = "deletionTimestamp" in existing.body()["metadata"]
            raise errors.already_exists(kind, name, ending=ending)
        entry = self._keep(target, body, options)
        return WriteResult(entry=entry, created=True, warnings=tuple(warnings))

    def _check_alive(self, target: RequestTarget, name: str) -> None:
        namespace = self.store.get(kinds.NAMESPACES, target.namespace)
        if namespace is None:
            raise errors.not_found(kinds.NAMESPACES, target.namespace)
        if namespace.fields["status.phase"] == "Terminating":
            raise errors.terminating(target.kind, name, target.namespace)

    def _store_update(
        self,
        target: RequestTarget,
        given: CheckedObject,
        old: stores.StoredObject,
        options: WriteOptions = _PLAIN,
    ) -> WriteResult:
        before, (cleaned, warnings) = old.body(), given
        stated = cleaned["metadata"].get("resourceVersion")
        if stated and stated != before["metadata"]["resourceVersion"]:
            raise errors.conflict(target.kind, target.name)
        body = self._changed(target, cleaned, before)
        ends = "deletionTimestamp" in before["metadata"] and not pods.has_grace(before, None)
        if ends and not body["metadata"].get("finalizers"):
            finish = self._delete_owner if target.kind in _OWNERS else self._remove
            return dataclasses.replace(finish(target, body), warnings=tuple(warnings))
        if body == before:
            return WriteResult(entry=old, warnings=tuple(warnings))
        entry = self._keep(target, body, options)
        return WriteResult(entry=entry, warnings=tuple(warnings))

    def _rescale(self, target: RequestTarget, wanted: Any, options: WriteOptions) -> WriteResult:
        whole = dataclasses.replace(target, subresource="")
        old = self.get(whole)
        body = _rescaled(target.kind, old.body(), wanted)
        written = self._store_update(whole, (body, []), old, options)
        return dataclasses.replace(written, entry=_as_scale(target.kind, written.entry))

    def _keep(self, target: RequestTarget, body: Any, options: WriteOptions) -> stores.StoredObject:
        if options.dry_run:
            return stores.entry_of(target.kind, target.key, body)
        if target.kind is kinds.SERVICES:
            self._numbers.set_allocated(target.key, services.numbers(body["spec"]))
        return self.store.put(target.kind, target.key, body)

    def _remove(self, target: RequestTarget, body: dict[str, Any]) -> WriteResult:
        entry = self.store.remove(target.kind, target.key, body)
        if target.kind is kinds.SERVICES:
            self._numbers.set_allocated(target.key, ())
            if self._port and (target.namespace, target.name) == ("default", services.KUBERNETES):
                self.publish(self._port)
        if target.kind.namespaced:
            self._finish_owner(kinds.NAMESPACES, target.namespace)
        if target.kind.is_custom:
            self._finish_owner(kinds.DEFINITIONS, target.kind.qualified)
        return WriteResult(entry=entry, deleted=True)

    def _delete_owner(self, target: RequestTarget, body: dict[str, Any]) -> WriteResult:
        """Delete the contents of a namespace or definition, then the object itself."""
        body["metadata"].setdefault("deletionTimestamp", schema.now())
        if target.kind is kinds.NAMESPACES:
            body["status"]["phase"] = "Terminating"
        entry = self.store.put(target.kind, target.name, body)
        for inside in list(self._inside(target.kind, target.name)):
            prefix = f"{inside.namespace}/" if inside.namespace else ""
            keys = [stored.key for stored in self.store.collection(inside.kind)]
            within = (key for key in keys if key.startswith(prefix))
            self.delete_all(inside, within, DeleteOptions())
        self._finish_owner(target.kind, target.name)
        return WriteResult(entry=entry)

    def _finish_owner(self, owner: kinds.ServedKind, name: str) -> None:
        entry = self.store.get(owner, name)
        # Search the bytes instead of decoding them, because this runs for every removed object.
        if entry is None or b'"deletionTimestamp"' not in entry.raw:
            return
        for inside in self._inside(owner, name):
            prefix = f"{inside.namespace}/" if inside.namespace else ""
            if self.store.collection(inside.kind).has_prefix(prefix):
                return
        body = entry.body()
        if not body["metadata"].get("finalizers"):
            self.store.remove(owner, name, body)

    def _inside(self, owner: kinds.ServedKind, name: str) -> Iterator[RequestTarget]:
        """Yield the collections that are deleted with a namespace or a definition."""
        for kind in self.store.kinds:
            if owner is kinds.NAMESPACES and kind.namespaced:
                yield RequestTarget(kind=kind, namespace=name)
            elif owner is kinds.DEFINITIONS and kind.is_custom and kind.qualified == name:
                yield RequestTarget(kind=kind)

    # --- admission ---------------------------------------------------------------------------

    def _new(self, kind: kinds.ServedKind, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return a new object in stored form, from a cleaned request body."""
        metadata = body["metadata"]
        _set_namespace(kind, namespace, metadata)
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))
            metadata["name"] = metadata["generateName"][:58] + suffix
        for key in (*_SERVER_METADATA, "selfLink"):
            metadata.pop(key, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = schema.now()
        if kind.has_generation:
            metadata["generation"] = 1
        if kind.status and not kind.keeps_new_status:
            body.pop("status", None)
            body = kind.clean(body)
        kinds.set_creation_defaults(kind, body)
        return self._finish(kind, body, None)

    def _changed(
        self, target: RequestTarget, body: dict[str, Any], old: dict[str, Any]
    ) -> dict[str, Any]:
        """Return a changed object in stored form, from a cleaned request body.

        A write to the approval or status subresource keeps everything but metadata and
        status; any other write keeps the status.
        """
        kind, metadata, before = target.kind, body["metadata"], old["metadata"]
        is_status = target.subresource in (kinds.APPROVAL, "status")
        _set_namespace(kind, before.get("namespace", ""), metadata)
        metadata.setdefault("uid", before["uid"])
        for key in (*_SERVER_METADATA, "selfLink", "managedFields"):
            metadata.pop(key, None)
        metadata |= {key: before[key] for key in _SERVER_METADATA if key in before}
        if is_status:
            body = {**old, "metadata": metadata, "status": body.get("status")}
        elif kind.status:
            body = {**body, "status": old.get("status")}
        return self._finish(kind, body, old, is_status=is_status)

    def _finish(
        self,
        kind: kinds.ServedKind,
        body: dict[str, Any],
        old: dict[str, Any] | None,
        *,
        is_status: bool = False,
    ) -> dict[str, Any]:
        is_service = kind is kinds.SERVICES
        kinds.set_dependent_defaults(kind, body)
        if self._is_strict:
            schema.fill(kind.shape, body)
            if is_service:
                services.complete(body, old)
        causes = [*_identity_faults(body, old)]
        if self._is_strict:
            causes += _faults(kind, body, old)
        if causes:
            raise errors.invalid(kind, body["metadata"].get("name", ""), causes)
        if is_service and self._is_strict and not is_status:
            try:
                services.allocate(body, old, self._numbers)
            except services.RefusedError as error:
                cause = errors.StatusCause("spec", f"failed to allocate: {error}")
                raise errors.invalid(kind, body["metadata"]["name"], [cause]) from error
        if kind is kinds.DEFINITIONS:
            kinds.kind_of_definition(body)
            kinds.establish(body)
        cleaned = kind.clean(body, known=old)
        rest = ("metadata", "status") if kind.status else ("metadata",)
        if (
            old is not None
            and kind.has_generation
            and _without(cleaned, *rest) != _without(old, *rest)
        ):
            cleaned["metadata"]["generation"] = cleaned["metadata"].get("generation", 0) + 1
        return cleaned


def new_object(kind: kinds.ServedKind, body: Any, options: WriteOptions) -> CheckedObject:
    """Return the object of a create or update in stored form, and its warnings.

    Raises:
        StatusError: the body is not an object of this kind.
    """
    if not isinstance(body, dict):
        raise errors.bad_request(f"the object provided is not a {kind.kind}")
    for key, wanted in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        stated = body.get(key) or wanted
        if stated != wanted:
            raise errors.bad_request(f"the {key} of the object must be {wanted}, not {stated}")
    return check_object(kind, body, options, errors.bad_request)


def check_object(
    kind: kinds.ServedKind,
    body: dict[str, Any],
    options: WriteOptions,
    refuse: Callable[[str], errors.StatusError],
    known: Mapping[str, Any] | None = None,
) -> CheckedObject:
    """Return the object in stored form, and the warnings about unknown fields.

    Raises:
        StatusError: a value has a wrong type, or there is an unknown field and the request
            wants strict validation. `refuse` creates the error.
    """
    unknown: list[str] = []
    try:
        cleaned = kind.clean(body, unknown, known=known)
    except schema.WrongTypeError as error:
        raise refuse(str(error)) from error
    faults = [f'unknown field "{path}"' for path in unknown]
    if faults and options.field_validation == "Strict":
        raise refuse(f"strict decoding error: {', '.join(faults)}")
    return cleaned, [] if options.field_validation == "Ignore" else faults


def delete_options(body: Any, query: Mapping[str, str]) -> DeleteOptions:
    """Return the options of a deletion, from its decoded body and its query parameters.

    Raises:
        StatusError: the body is not a DeleteOptions object.
    """
    try:
        body = schema.clean(schema.kubernetes()["DeleteOptions"], body, [])
    except (AttributeError, schema.WrongTypeError) as error:
        raise errors.bad_request(f"invalid DeleteOptions: {error}") from error
    wanted = body.get("preconditions") or {}
    return DeleteOptions(
        uid=wanted.get("uid", ""),
        resource_version=wanted.get("resourceVersion", ""),
        dry_run="All" in (body.get("dryRun") or [query.get("dryRun")]),
        grace_s=body.get("gracePeriodSeconds", parse_digits(query.get("gracePeriodSeconds", ""))),
    )


def _identity_faults(
    body: dict[str, Any], old: dict[str, Any] | None
) -> Iterator[errors.StatusCause]:
    if not body["metadata"].get("name"):
        yield errors.required("metadata.name")
    for key in _IMMUTABLE:
        if old is not None and body["metadata"].get(key) != old["metadata"].get(key):
            yield errors.StatusCause(f"metadata.{key}", "field is immutable")


def _faults(
    kind: kinds.ServedKind, body: dict[str, Any], old: dict[str, Any] | None
) -> Iterator[errors.StatusCause]:
    meta = body["metadata"]
    yield from schema.faults(kind.shape, body)
    if kind is kinds.SERVICES:
        yield from services.faults(body, old)
    if kind is kinds.DEFINITIONS and meta.get("name") != kinds.kind_of_definition(body).qualified:
        yield errors.StatusCause("metadata.name", "must be spec.names.plural+'.'+spec.group")
    if old is None:
        return
    before = old["metadata"]
    fresh = set(meta.get("finalizers", ())) - set(before.get("finalizers", ()))
    if "deletionTimestamp" in before and fresh:
        yield errors.forbidden("metadata.finalizers", "no new finalizers while it is being deleted")
    if kind is kinds.NODES:
        for key in _SET_ONCE_OF_NODES:
            if old["spec"].get(key) and body["spec"].get(key) != old["spec"][key]:
                yield errors.forbidden(f"spec.{key}", "may not change once set")


def _set_namespace(kind: kinds.ServedKind, namespace: str, metadata: dict[str, Any]) -> None:
    stated = metadata.pop("namespace", "")
    if kind.namespaced:
        if stated not in ("", namespace):
            raise errors.bad_request(
                f"the namespace of the object ({stated}) does not match the namespace sent on "
                f"the request ({namespace})"
            )
        metadata["namespace"] = namespace


def _without(body: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in keys}


def _patched(
    kind: kinds.ServedKind, current: dict[str, Any], patch: Any, content_type: str
) -> dict[str, Any]:
    try:
        if content_type == JSON_PATCH:
            result = patches.json_patch(current, patch)
        elif not isinstance(patch, dict):
            raise patches.BadPatchError("the patch is not an object")
        elif content_type == MERGE_PATCH or kind.is_custom:
            result = patches.merge(current, patch)
        else:
            result = patches.strategic(kind.shape, current, patch)
        if not isinstance(result, dict):
            raise patches.UnprocessablePatchError("the patch removes the whole object")
    except patches.BadPatchError as error:
        raise errors.bad_request(f"error decoding patch: {error}") from error
    except patches.UnprocessablePatchError as error:
        text = "the server rejected our request due to an error in our request"
        raise errors.StatusError(422, "Invalid", text) from error
    return result


def _check_name(target: RequestTarget, given: CheckedObject) -> None:
    name = given[0]["metadata"].get("name", "")
    if name != target.name:
        text = f"the name of the object ({name}) does not match the name on the URL"
        raise errors.bad_request(f"{text} ({target.name})")


# --- scale ---------------------------------------------------------------------------------------


def _as_scale(kind: kinds.ServedKind, entry: stores.StoredObject) -> stores.StoredObject:
    """Return the Scale of an object."""
    assert kind.scale is not None
    body, places = entry.body(), kind.scale
    wanted, present = (
        int(next(iter(tables.find(body, path)), 0))
        for path in (places.replicas, places.status_replicas)
    )
    status: dict[str, Any] = {"replicas": present}
    if places.selector:
        status["selector"] = next(iter(tables.find(body, places.selector)), "")
    metadata = {key: body["metadata"][key] for key in _SCALE_METADATA if key in body["metadata"]}
    head = {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata}
    scale = {**head, "spec": {"replicas": wanted}, "status": status}
    return dataclasses.replace(entry, raw=msgspec.json.encode(scale))


def _rescaled(kind: kinds.ServedKind, body: dict[str, Any], wanted: Any) -> dict[str, Any]:
    """Return the object with the replicas and the resource version of a Scale."""
    spec, meta = (wanted.get(key) or {} for key in ("spec", "metadata"))
    replicas = spec.get("replicas", 0)
    if type(replicas) is not int or replicas < 0:
        cause = errors.StatusCause("spec.replicas", "must be a whole number, 0 or more")
        raise errors.invalid(kind, body["metadata"]["name"], [cause])
    if meta.get("resourceVersion"):
        body["metadata"]["resourceVersion"] = meta["resourceVersion"]
    assert kind.scale is not None
    tables.put(body, kind.scale.replicas, replicas)
    return body
