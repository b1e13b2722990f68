"""Request bodies to objects, telling duplicate and unknown fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from ccm.sandbox.apiserver import errors, kinds, protobuf, query, scalars, schema

YAML_TYPES = ("application/yaml", "application/apply-patch+yaml")


class _WithDuplicates(dict[str, Any]):
    """A decoded JSON object that knows which keys came twice."""

    twice: list[str]


def parse(body: bytes, content_type: str) -> tuple[Any, list[str]]:
    """The decoded body, and the paths of fields that occur more than once.

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
    found = json.loads(body, object_pairs_hook=_object)
    return found, list(_duplicates(found, ""))


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
    faults += [f'duplicate field "{path}"' for path in twice if path not in unknown]
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
    try:
        found, twice = parse(body, content_type)
    except ValueError as error:
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind}): couldn't get "
            f"version/kind; json parse error: {error}"
        ) from error
    if not isinstance(found, dict):
        raise errors.bad_request(
            f"the object provided is unrecognized (must be of type {kind.kind})"
        )
    _check_kind(kind, found)
    unknown: list[str] = []
    try:
        cleaned = clean(kind, found, unknown)
    except scalars.WrongTypeError as error:
        raise _unhandled(kind, str(error)) from error
    warnings = check_fields(options, unknown, twice, lambda text: _unhandled(kind, text))
    return cleaned, warnings


def clean(
    kind: kinds.Kind,
    found: dict[str, Any],
    unknown: list[str],
    *,
    known: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """An object in stored form, its kind and version first; see `Schema.clean`.

    Raises:
        WrongTypeError: a value has a wrong type.
    """
    head = {"kind": kind.kind, "apiVersion": kind.api_version}
    return schema.kubernetes().clean(kind.kind, {**found, **head}, unknown, known=known)


def _check_kind(kind: kinds.Kind, found: dict[str, Any]) -> None:
    stated = found.get("kind") or kind.kind
    version = found.get("apiVersion") or kind.api_version
    if stated != kind.kind:
        raise errors.bad_request(
            f'{stated} in version "{version}" cannot be handled as a {kind.kind}: '
            "converting: unknown conversion"
        )
    if version != kind.api_version:
        raise errors.bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({kind.api_version})"
        )


def _unhandled(kind: kinds.Kind, why: str) -> errors.ApiError:
    return errors.bad_request(
        f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}'
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    marked = _WithDuplicates(found)
    marked.twice = [key for key, _ in pairs if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
    return marked


def _duplicates(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _duplicates(item, f"{path}[{number}]")
    elif isinstance(value, dict):
        prefix = f"{path}." if path else ""
        if isinstance(value, _WithDuplicates):
            yield from (prefix + key for key in value.twice)
        for key, item in value.items():
            if isinstance(item, dict | list):
                yield from _duplicates(item, prefix + key)
