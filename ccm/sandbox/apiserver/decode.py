"""Request bodies to objects, telling unknown fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from ccm.base.digits import parse_digits
from ccm.sandbox.apiserver import errors, kinds, protobuf, query, scalars, schema

Decoded = tuple[dict[str, Any], list[str]]
"""An object in stored form, and the warnings about its unknown fields."""

YAML_TYPES = ("application/yaml", "application/apply-patch+yaml")


def parse(body: bytes, content_type: str) -> Any:
    """The decoded body.

    Raises:
        ApiError: the body is not what its content type says.
    """
    try:
        if content_type == protobuf.CONTENT_TYPE:
            return protobuf.decode(schema.kubernetes(), body)
        return yaml.safe_load(body) if content_type in YAML_TYPES else json.loads(body)
    except (ValueError, yaml.YAMLError) as error:
        raise errors.bad_request(f"the body cannot be decoded: {error}") from error


def new_object(kind: kinds.Kind, found: Any, options: query.WriteOptions) -> Decoded:
    """A whole object of a create or update, cleaned, and its warnings.

    Raises:
        ApiError: the body cannot be such an object.
    """
    if not isinstance(found, dict):
        raise errors.bad_request(f"the object provided is no {kind.kind}")
    for key, wanted in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        stated = found.get(key) or wanted
        if stated != wanted:
            raise errors.bad_request(f"the {key} of the object must be {wanted}, not {stated}")

    def refuse(why: str) -> errors.ApiError:
        what = f'{kind.kind} in version "{kind.version}"'
        return errors.bad_request(f"{what} cannot be handled as a {kind.kind}: {why}")

    return checked(kind, found, options, refuse)


def checked(
    kind: kinds.Kind,
    found: dict[str, Any],
    options: query.WriteOptions,
    refuse: Callable[[str], errors.ApiError],
    known: Mapping[str, Any] | None = None,
) -> Decoded:
    """The object in stored form, and the warnings about unknown fields.

    Raises:
        ApiError: a value has a wrong type, or the request wants strictness and there is
            such a field; `refuse` makes it.
    """
    unknown: list[str] = []
    try:
        cleaned = clean(kind, found, unknown, known=known)
    except scalars.WrongTypeError as error:
        raise refuse(str(error)) from error
    faults = [f'unknown field "{path}"' for path in unknown]
    if faults and options.field_validation == "Strict":
        raise refuse(f"strict decoding error: {', '.join(faults)}")
    return cleaned, [] if options.field_validation == "Ignore" else faults


def clean(
    kind: kinds.Kind,
    found: dict[str, Any],
    unknown: list[str],
    *,
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An object in stored form, its kind and version first; see `schema.clean`.

    Raises:
        WrongTypeError: a value has a wrong type.
    """
    rest = {key: item for key, item in found.items() if key not in ("kind", "apiVersion")}
    head = {"kind": kind.kind, "apiVersion": kind.api_version}
    return head | schema.clean(kind.shape, rest, unknown, known)


def delete_options(
    body: bytes, content_type: str, parameters: dict[str, str]
) -> query.DeleteOptions:
    """The options of a deletion, from its body and its query parameters.

    Raises:
        ApiError: the body is not a DeleteOptions object.
    """
    found: Any = parse(body, content_type) if body else {}
    try:
        found = schema.clean(schema.kubernetes()["DeleteOptions"], found, [])
    except (AttributeError, scalars.WrongTypeError) as error:
        raise errors.bad_request(f"invalid DeleteOptions: {error}") from error
    wanted = found.get("preconditions") or {}
    return query.DeleteOptions(
        uid=wanted.get("uid", ""),
        resource_version=wanted.get("resourceVersion", ""),
        dry_run="All" in (found.get("dryRun") or [parameters.get("dryRun")]),
        grace_s=found.get("gracePeriodSeconds", _number(parameters.get("gracePeriodSeconds"))),
    )


def _number(text: str | None) -> int | None:
    return parse_digits(text or "")
