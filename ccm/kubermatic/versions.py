"""Semantic versions, and the constraints of `--kubernetes-version-constraints`. No I/O."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION = rf"v?({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_IDENTIFIERS}))?(?:\+{_IDENTIFIERS})?"
_TERM = re.compile(rf"\s*(=|!=|<|<=|>|>=|)\s*({_VERSION})\s*")

_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_Version = tuple[tuple[int, ...], tuple[Any, ...]]
"""Numbers and pre-release of a version; versions are ordered as tuples are."""

_RELEASE = (1,)
"""Sort key of a version without a pre-release, which is later than every pre-release."""


def _parse(text: str) -> _Version | None:
    """Parse a version; None = it is invalid. Build metadata do not count."""
    match = re.fullmatch(_VERSION, text)
    if match is None:
        return None
    *numbers, pre_release = match.groups()
    # Numbers are lower than other identifiers; of two numbers, the longer is higher.
    parts = tuple(
        (0, len(part.lstrip("0")), part.lstrip("0")) if part.isdigit() else (1, 0, part)
        for part in (pre_release or "").split(".")
    )
    return tuple(map(int, numbers)), (0, parts) if pre_release else _RELEASE


def _parse_constraints(text: str) -> list[list[tuple[str, _Version]]]:
    """Parse constraints: alternatives, each a list of operator and version.

    Raises:
        ValueError: the constraints are invalid; the message is the invalid part.
    """
    alternatives = []
    for alternative in text.split("||"):
        terms = []
        for term in alternative.split(","):
            match = _TERM.fullmatch(term)
            version = _parse(match[2]) if match else None
            if match is None or version is None:
                raise ValueError(term.strip())
            terms.append((match[1], version))
        alternatives.append(terms)
    return alternatives


def constraints_fault(text: str) -> str:
    """Return the requirement that constraints violate; empty if they are valid."""
    try:
        _parse_constraints(text)
    except ValueError as error:
        return f"{str(error)!r} must be a comparison such as >=1.33.0"
    return ""


def kubelet_version_fault(text: str, constraints: str) -> str:
    """Return the requirement that a version of the kubelet violates; empty if it is valid.

    As in Kubermatic, a pre-release is only admitted by comparisons with a pre-release.

    Args:
        text: the version; a leading `v` is allowed.
        constraints: valid constraints.
    """
    version = _parse(text)
    if version is None:
        return "must be a version such as 1.35.1"
    for terms in _parse_constraints(constraints):
        if all(
            _OPERATORS[sign](version, bound) and (version[1] == _RELEASE or bound[1] != _RELEASE)
            for sign, bound in terms
        ):
            return ""
    return f"must satisfy --kubernetes-version-constraints={constraints}"
