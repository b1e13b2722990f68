"""What the API server answers when it refuses: one exception that is a Status object.

Every refusal has the wire shape of Kubernetes' `meta/v1 Status`, and the reason and code
that clients tell refusals apart by:

    ApiError(code, reason, message, details)
      400 BadRequest      401 Unauthorized     403 Forbidden       404 NotFound
      405 MethodNotAllowed  406 NotAcceptable  409 AlreadyExists, Conflict
      410 Expired         413 RequestEntityTooLarge  415 UnsupportedMediaType
      422 Invalid         500 InternalError
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any


class ApiError(Exception):
    """A refused request, with everything the client will see of it."""

    def __init__(
        self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})

    def status(self) -> dict[str, Any]:
        """The Status object of the answer's body."""
        more = {"message": self.message, "reason": self.reason, "details": self.details}
        return status_object("Failure", **more, code=self.code)


def status_object(outcome: str, **more: Any) -> dict[str, Any]:
    """A Status with what is not empty."""
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": outcome}
    return head | {key: value for key, value in more.items() if value}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resource:
    """How an error names what it is about."""

    group: str = ""
    plural: str
    kind: str

    @property
    def qualified(self) -> str:
        """`nodes`, or with its group `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def details(self, name: str, *, as_kind: bool = False) -> dict[str, Any]:
        """The `details` of a Status: its `kind` holds the plural, or the kind if asked."""
        found = {"name": name, "group": self.group, "kind": self.kind if as_kind else self.plural}
        return {key: value for key, value in found.items() if value}


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """One fault of an invalid object."""

    field: str
    reason: str
    message: str


def bad_value(field: str, value: object, detail: str) -> Cause:
    """A field whose value is not allowed."""
    return Cause(field, "FieldValueInvalid", f"Invalid value: {_quoted(value)}: {detail}")


def required(field: str, detail: str = "") -> Cause:
    """A field that must be there and is not."""
    return Cause(field, "FieldValueRequired", f"Required value: {detail}".removesuffix(": "))


def forbidden_field(field: str, detail: str) -> Cause:
    """A field that may not be set or changed."""
    return Cause(field, "FieldValueForbidden", f"Forbidden: {detail}")


def not_supported(field: str, value: object, choices: Iterable[str]) -> Cause:
    """A field whose value is not one of the allowed choices."""
    listed = ", ".join(f'"{choice}"' for choice in choices)
    text = f"Unsupported value: {_quoted(value)}: supported values: {listed}"
    return Cause(field, "FieldValueNotSupported", text)


def duplicate(field: str, value: object) -> Cause:
    """An element of a list that occurs twice."""
    return Cause(field, "FieldValueDuplicate", f"Duplicate value: {_quoted(value)}")


def invalid_patch(why: str) -> ApiError:
    """422: the patched object has a wrong shape."""
    return _invalid(' ""', {}, [Cause("patch", "FieldValueInvalid", why)])


def invalid_options(causes: Iterable[Cause]) -> ApiError:
    """422: query parameters that do not go together."""
    details = {"group": "meta.k8s.io", "kind": "ListOptions"}
    return _invalid('ListOptions.meta.k8s.io ""', details, causes)


def invalid(resource: Resource, name: str, causes: Iterable[Cause]) -> ApiError:
    """422: the object has faults, all of them told at once."""
    qualified = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return _invalid(f'{qualified} "{name}"', resource.details(name, as_kind=True), causes)


def bad_request(message: str) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(400, "BadRequest", message)


def not_found(resource: Resource, name: str) -> ApiError:
    """404: no such object."""
    text = f'{resource.qualified} "{name}" not found'
    return ApiError(404, "NotFound", text, resource.details(name))


def already_exists(resource: Resource, name: str, *, ending: bool = False) -> ApiError:
    """409: create of a name that is taken, maybe by an object that is being deleted."""
    prefix = "object is being deleted: " if ending else ""
    text = f'{prefix}{resource.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, resource.details(name))


def terminating(resource: Resource, name: str, namespace: str) -> ApiError:
    """403: create in a namespace that is being deleted."""
    why = f"the namespace {namespace} is being terminated"
    cause = Cause("metadata.namespace", "NamespaceTerminating", why)
    details = {**resource.details(name), "causes": [dataclasses.asdict(cause)]}
    return ApiError(403, "Forbidden", f'{resource.qualified} "{name}" is forbidden: {why}', details)


def crd_terminating(verb: str) -> ApiError:
    """405: create of an object whose CustomResourceDefinition is being deleted."""
    text = f"{verb} not allowed while custom resource definition is terminating"
    return ApiError(405, "MethodNotAllowed", text)


def conflict(
    resource: Resource,
    name: str,
    why: str = "the object has been modified; please apply your changes to the latest version",
) -> ApiError:
    """409: the object is not the one the client has seen."""
    text = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", text, resource.details(name))


def _invalid(what: str, details: dict[str, Any], causes: Iterable[Cause]) -> ApiError:
    # Every cause stands in the details, but none twice in the text.
    listed = list(causes)
    texts = list(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in listed))
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details["causes"] = [dataclasses.asdict(cause) for cause in listed]
    return ApiError(422, "Invalid", f"{what} is invalid: {joined}", details)


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
