"""Refusals: one exception with the wire shape of a `meta/v1` Status object.

Clients distinguish refusals by code and reason; the messages are this server's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any


class ApiError(Exception):
    """A refused request, with the code, reason, message and details that the client gets."""

    def __init__(
        self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = dict(details or {})

    def status(self) -> dict[str, Any]:
        """Return the Status object of the response body."""
        more = {"message": str(self), "reason": self.reason, "details": self.details}
        return status_object("Failure", **more, code=self.code)


def status_object(outcome: str, **more: Any) -> dict[str, Any]:
    """Return a Status with all fields that are not empty."""
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": outcome}
    return head | {key: value for key, value in more.items() if value}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resource:
    """The names of a kind in messages."""

    group: str = ""
    plural: str
    kind: str

    @property
    def qualified(self) -> str:
        """`nodes`, or with its group `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def details(self, name: str, *, as_kind: bool = False) -> dict[str, Any]:
        """Return the `details` of a Status; its `kind` holds the plural, or the kind if asked."""
        found = {"name": name, "group": self.group, "kind": self.kind if as_kind else self.plural}
        return {key: value for key, value in found.items() if value}


@dataclasses.dataclass(frozen=True, slots=True)
class Cause:
    """One fault of an invalid object."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


def required(field: str) -> Cause:
    """Return the cause for a field that is absent and must not be."""
    return Cause(field, "Required value", "FieldValueRequired")


def forbidden(field: str, detail: str) -> Cause:
    """Return the cause for a field that may not be set or changed."""
    return Cause(field, f"Forbidden: {detail}", "FieldValueForbidden")


def invalid(resource: Resource, name: str, causes: Iterable[Cause]) -> ApiError:
    """422: all faults of the object at once."""
    listed = list(causes)
    joined = ", ".join(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in listed))
    details = resource.details(name, as_kind=True)
    details["causes"] = [dataclasses.asdict(cause) for cause in listed]
    return ApiError(422, "Invalid", f'{resource.kind} "{name}" is invalid: {joined}', details)


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


def conflict(
    resource: Resource,
    name: str,
    why: str = "the object has been modified; please apply your changes to the latest version",
) -> ApiError:
    """409: the object is not the one the client has seen."""
    text = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return ApiError(409, "Conflict", text, resource.details(name))


def terminating(resource: Resource, name: str, namespace: str) -> ApiError:
    """403: create in a namespace that is being deleted."""
    why = f"the namespace {namespace} is being terminated"
    cause = Cause("metadata.namespace", why, "NamespaceTerminating")
    details = {**resource.details(name), "causes": [dataclasses.asdict(cause)]}
    return ApiError(403, "Forbidden", f'{resource.qualified} "{name}" is forbidden: {why}', details)
