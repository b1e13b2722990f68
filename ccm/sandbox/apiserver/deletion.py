"""The options of a deletion and the preconditions among them."""

from __future__ import annotations

import dataclasses
from typing import Any

from ccm.sandbox.apiserver import decode, errors, kinds, scalars, schema


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The preconditions of a deletion; empty ones hold always."""

    uid: str = ""
    resource_version: str = ""
    dry_run: bool = False


def options(body: bytes, content_type: str, parameters: dict[str, str]) -> Options:
    """The options of a deletion, from its body and its query parameters.

    Raises:
        ApiError: the body is not a DeleteOptions object.
    """
    found: Any = {}
    if body:
        try:
            found, _ = decode.parse(body, content_type)
            found = schema.clean(schema.kubernetes()["DeleteOptions"], found, [])
        except (ValueError, AttributeError, scalars.WrongTypeError) as error:
            raise errors.bad_request(f"invalid DeleteOptions: {error}") from error
    wanted = found.get("preconditions") or {}
    dry_run = found.get("dryRun") or [parameters.get("dryRun", "")]
    return Options(
        uid=wanted.get("uid", ""),
        resource_version=wanted.get("resourceVersion", ""),
        dry_run="All" in dry_run,
    )


def check_preconditions(
    kind: kinds.Kind, name: str, metadata: dict[str, Any], wanted: Options
) -> None:
    """Compare an object's metadata with what the client expects.

    Raises:
        ApiError: 409, it is not the object that the client has seen.
    """
    pairs = (
        ("uid", "UID", wanted.uid),
        ("resourceVersion", "ResourceVersion", wanted.resource_version),
    )
    for key, what, value in pairs:
        if value and value != metadata[key]:
            raise errors.conflict(
                kind,
                name,
                f"the {what} in the precondition ({value}) does not match the {what} in record "
                f"({metadata[key]}). The object might have been changed, or deleted and recreated",
            )
