"""Label selectors as text and as objects: parsing and matching.

A selector as text consists of requirements, joined by commas: `a=b`, `a==b`, `a!=b`, `a in (x,y)`,
`a notin (x,y)`, `a`, `!a`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Annotated

from ccm.model.meta import Wire, enum

_TERM = re.compile(
    r"\s*(?P<absent>!\s*)?(?P<key>[^\s,!=()]+)"
    r"(?(absent)|(?:\s*(?P<op>==|!=|=)\s*(?P<value>[^\s,!=()]*)"
    r"|\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?)\s*(?:,|$)"
)


class BadSelectorError(ValueError):
    """The selector is malformed, or is a field selector for a field that cannot be selected."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """Requirement of a selector.

    Attributes:
        key: key of the label or field.
        values: values to compare with; None = any value.
        wanted: True = the key must exist with one of `values`; False = the opposite, which an
            absent key satisfies too.
    """

    key: str
    values: frozenset[str] | None
    wanted: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels (or fields) satisfy the requirement; `!=` allows an absent key."""
        value = labels.get(self.key)
        inside = value is not None and (self.values is None or value in self.values)
        return inside is self.wanted


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Return the requirements of a label selector.

    Raises:
        BadSelectorError: the text is malformed.
    """
    terms = []
    position = 0
    while position < len(text.rstrip()):
        match = _TERM.match(text, position)
        if match is None:
            raise BadSelectorError(f"unable to parse requirement: {text[position:]!r}")
        terms.append(_label_term(match))
        position = match.end()
    return tuple(terms)


def _label_term(match: re.Match[str]) -> Requirement:
    values = match["values"].split(",") if match["set"] else [match["value"]] * bool(match["op"])
    is_negative = match["absent"] or match["op"] == "!=" or match["set"] == "notin"
    among = frozenset(value.strip() for value in values) if values else None
    return Requirement(key=match["key"], values=among, wanted=not is_negative)


_OPERATORS = {"In": True, "NotIn": False, "Exists": True, "DoesNotExist": False}
"""Operator of a `matchExpressions` entry -> `Requirement.wanted`."""


class Term(Wire, frozen=True, kw_only=True):
    """Requirement of a label selector.

    Attributes:
        key: key of the label.
        operator: In and NotIn compare the label's value with `values`; Exists and DoesNotExist
            check only the key.
        values: values for In and NotIn.
    """

    key: str
    operator: Annotated[str, enum(*_OPERATORS)]
    values: list[str] | None = None


class LabelSelector(Wire, frozen=True, kw_only=True):
    """Label selector; all of its requirements must match.

    Attributes:
        match_labels: labels that an object must have, with their values.
        match_expressions: further requirements on the labels of an object.
    """

    match_labels: dict[str, str] | None = None
    match_expressions: list[Term] | None = None

    def requirements(self) -> tuple[Requirement, ...]:
        """Return the requirements on labels.

        Raises:
            BadSelectorError: an operator is unknown, or its values are missing or not allowed.
        """
        exact = (
            Requirement(key=key, values=frozenset({value}), wanted=True)
            for key, value in (self.match_labels or {}).items()
        )
        return (*exact, *(_expression(term) for term in self.match_expressions or ()))


def matches(terms: Iterable[Requirement], labels: Mapping[str, str]) -> bool:
    """Return whether labels satisfy all requirements."""
    return all(term.matches(labels) for term in terms)


def _expression(term: Term) -> Requirement:
    key, operator, values = term.key, term.operator, term.values or ()
    if operator not in _OPERATORS:
        known = ", ".join(_OPERATORS)
        raise BadSelectorError(f"operator {operator!r} of {key!r} is unknown; use one of {known}")
    needs = operator in ("In", "NotIn")
    if needs != bool(values):
        raise BadSelectorError(
            f"operator {operator} of {key!r} {'needs values' if needs else 'takes no values'}"
        )
    among = frozenset(values) if needs else None
    return Requirement(key=key, values=among, wanted=_OPERATORS[operator])
