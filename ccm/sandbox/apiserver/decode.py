"""Request bodies to objects, telling duplicate and unknown fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from ccm.sandbox.apiserver import errors, kinds, protobuf, query, scalars, schema

YAML_TYPES = ("application/yaml", "application/apply-patch+yaml")


def parse(body: bytes, content_type: str) -> tuple[Any, list[str]]:
    """The decoded body, and the names of fields that occur more than once in an object.

    Raises:
        ValueError: the body is not what its content type says.
    """
    if content_type == protobuf.CONTENT_TYPE:
        return protobuf.decode(schema.kubernetes(), body), []
    if content_type in YAML_TYPES:
        try:
            return yaml.safe_load(body), []
        except yaml.YAMLError as error:
            raise ValueError(f"error decoding YAML: {error}") from error
    twice: list[str] = []

    def gather(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice.extend(key for key in found if keys.count(key) > 1)
        return found

    return json.loads(body, object_pairs_hook=gather), twice


def check_fields(
    options: query.WriteOptions,
    unknown: list[str],
    twice: list[str],
    refuse: Callable[[str], errors.ApiError],
) -> list[str]:
    """The warnings about unknown and duplicate fields.

    Raises:
        ApiError: there are some and the request wants strictness; `refuse` makes it.
    """
    faults = [f'unknown field "{path}"' for path in unknown]
    faults += [f'duplicate field "{name}"' for name in twice]
    if options.field_validation == "Ignore" or not faults:
        return []
    if options.field_validation == "Strict":
        raise refuse(f"strict decoding error: {', '.join(faults)}")
    return faults


def new_object(
    kind: kinds.Kind, body: bytes, content_type: str, options: query.WriteOptions
) -> tuple[dict[str, Any], list[str]]:
    """A whole object of a create or update, cleaned, and its warnings.

    Raises:
        ApiError: the body cannot be such an object.
    """
    unrecognized = f"the object provided is unrecognized (must be of type {kind.kind})"
    try:
        found, twice = parse(body, content_type)
    except ValueError as error:
        raise errors.bad_request(f"{unrecognized}: {error}") from error
    if not isinstance(found, dict):
        raise errors.bad_request(unrecognized)
    for key, wanted in (("kind", kind.kind), ("apiVersion", kind.api_version)):
        stated = found.get(key) or wanted
        if stated != wanted:
            raise errors.bad_request(
                f"the {key} in the data ({stated}) does not match the expected {key} ({wanted})"
            )

    def unhandled(why: str) -> errors.ApiError:
        what = f'{kind.kind} in version "{kind.version}"'
        return errors.bad_request(f"{what} cannot be handled as a {kind.kind}: {why}")

    unknown: list[str] = []
    try:
        cleaned = clean(kind, found, unknown)
    except scalars.WrongTypeError as error:
        raise unhandled(str(error)) from error
    return cleaned, check_fields(options, unknown, twice, unhandled)


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
    found: Any = {}
    if body:
        try:
            found, _ = parse(body, content_type)
            found = schema.clean(schema.kubernetes()["DeleteOptions"], found, [])
        except (ValueError, AttributeError, scalars.WrongTypeError) as error:
            raise errors.bad_request(f"invalid DeleteOptions: {error}") from error
    wanted = found.get("preconditions") or {}
    dry_run = found.get("dryRun") or [parameters.get("dryRun", "")]
    return query.DeleteOptions(
        uid=wanted.get("uid", ""),
        resource_version=wanted.get("resourceVersion", ""),
        dry_run="All" in dry_run,
    )
