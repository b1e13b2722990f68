"""Errors: one exception with the wire format of a `meta/v1` Status object.

Clients distinguish errors by code and reason; the messages are this server's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any


class StatusError(Exception):
    """A refused request, with the code, reason, message and details of the response."""

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
class KindNames:
    """Names of a kind, for messages."""

    group: str = ""
    plural: str
    kind: str

    @property
    def qualified(self) -> str:
        """Plural with its group, such as `leases.coordination.k8s.io`; core kinds have no group."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def details(self, name: str, *, as_kind: bool = False) -> dict[str, Any]:
        """Return the `details` of a Status; its `kind` is the plural unless `as_kind` is set."""
        fields = {"name": name, "group": self.group, "kind": self.kind if as_kind else self.plural}
        return {key: value for key, value in fields.items() if value}


@dataclasses.dataclass(frozen=True, slots=True)
class StatusCause:
    """One fault of an invalid object, as in `details.causes` of a Status."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


def required(field: str) -> StatusCause:
    """Return the cause for a missing required field."""
    return StatusCause(field, "Required value", "FieldValueRequired")


def forbidden(field: str, detail: str) -> StatusCause:
    """Return the cause for a field that must not be set or changed."""
    return StatusCause(field, f"Forbidden: {detail}", "FieldValueForbidden")


def invalid(resource: KindNames, name: str, causes: Iterable[StatusCause]) -> StatusError:
    """Return the 422 error for all faults of an object."""
    listed = list(causes)
    joined = ", ".join(dict.fromkeys(f"{cause.field}: {cause.message}" for cause in listed))
    details = resource.details(name, as_kind=True)
    details["causes"] = [dataclasses.asdict(cause) for cause in listed]
    return StatusError(422, "Invalid", f'{resource.kind} "{name}" is invalid: {joined}', details)


def bad_request(message: str) -> StatusError:
    """Return the 400 error for a malformed request."""
    return StatusError(400, "BadRequest", message)


def not_found(resource: KindNames, name: str) -> StatusError:
    """Return the 404 error for an absent object."""
    text = f'{resource.qualified} "{name}" not found'
    return StatusError(404, "NotFound", text, resource.details(name))


def already_exists(resource: KindNames, name: str, *, ending: bool = False) -> StatusError:
    """Return the 409 error for creating an existing object.

    `ending`: the existing object is being deleted.
    """
    prefix = "object is being deleted: " if ending else ""
    text = f'{prefix}{resource.qualified} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, resource.details(name))


def conflict(
    resource: KindNames,
    name: str,
    why: str = "the object has been modified; please apply your changes to the latest version",
) -> StatusError:
    """Return the 409 error for an object that has changed since the client read it."""
    text = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}'
    return StatusError(409, "Conflict", text, resource.details(name))


def terminating(resource: KindNames, name: str, namespace: str) -> StatusError:
    """Return the 403 error for creating an object in a namespace that is being deleted."""
    why = f"the namespace {namespace} is being terminated"
    cause = StatusCause("metadata.namespace", why, "NamespaceTerminating")
    details = {**resource.details(name), "causes": [dataclasses.asdict(cause)]}
    return StatusError(
        403, "Forbidden", f'{resource.qualified} "{name}" is forbidden: {why}', details
    )
