"""Label selectors in their text form, and in that of objects: parse, then match.

`a=b`, `a==b`, `a!=b`, `a in (x,y)`, `a notin (x,y)`, `a`, `!a`, joined by commas.
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
    """A text that is no selector, or names a field that cannot be selected by."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One term: the key's value must (or must not) be among `values`; None = any value."""

    key: str
    values: frozenset[str] | None
    wanted: bool

    def matches(self, found: Mapping[str, str]) -> bool:
        """Whether labels (or fields) satisfy the term; an absent key satisfies `!=`."""
        value = found.get(self.key)
        inside = value is not None and (self.values is None or value in self.values)
        return inside is self.wanted


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """The requirements of a label selector.

    Raises:
        BadSelectorError: the text is malformed.
    """
    terms = []
    position = 0
    while position < len(text.rstrip()):
        found = _TERM.match(text, position)
        if found is None:
            raise BadSelectorError(f"unable to parse requirement: {text[position:]!r}")
        terms.append(_label_term(found))
        position = found.end()
    return tuple(terms)


def _label_term(found: re.Match[str]) -> Requirement:
    values = found["values"].split(",") if found["set"] else [found["value"]] * bool(found["op"])
    is_negative = found["absent"] or found["op"] == "!=" or found["set"] == "notin"
    among = frozenset(value.strip() for value in values) if values else None
    return Requirement(key=found["key"], values=among, wanted=not is_negative)


_OPERATORS = {"In": True, "NotIn": False, "Exists": True, "DoesNotExist": False}
"""Whether what the operator of an object's selector speaks of is wanted."""


class Term(Wire, frozen=True, kw_only=True):
    """One term of a selector.

    Attributes:
        key: label that the term is about.
        operator: In and NotIn compare its value with values; Exists and DoesNotExist do not.
        values: values for In and NotIn.
    """

    key: str
    operator: Annotated[str, enum(*_OPERATORS)]
    values: list[str] | None = None


class LabelSelector(Wire, frozen=True, kw_only=True):
    """Selects by labels; all of it has to hold.

    Attributes:
        match_labels: labels that an object needs, with their values.
        match_expressions: further terms that the labels of an object have to satisfy.
    """

    match_labels: dict[str, str] | None = None
    match_expressions: list[Term] | None = None

    def requirements(self) -> tuple[Requirement, ...]:
        """What labels have to be like.

        Raises:
            BadSelectorError: an operator is unknown, or has values that it does not go with.
        """
        exact = (
            Requirement(key=key, values=frozenset({value}), wanted=True)
            for key, value in (self.match_labels or {}).items()
        )
        return (*exact, *(_expression(one) for one in self.match_expressions or ()))


def matches(terms: Iterable[Requirement], found: Mapping[str, str]) -> bool:
    """Whether labels satisfy all terms."""
    return all(term.matches(found) for term in terms)


def _expression(term: Term) -> Requirement:
    key, operator, values = term.key, term.operator, term.values or ()
    if operator not in _OPERATORS:
        known = ", ".join(_OPERATORS)
        raise BadSelectorError(f"operator {operator!r} of {key!r} is none of {known}")
    needs = operator in ("In", "NotIn")
    if needs != bool(values):
        raise BadSelectorError(
            f"operator {operator} of {key!r} {'needs values' if needs else 'takes no values'}"
        )
    among = frozenset(values) if needs else None
    return Requirement(key=key, values=among, wanted=_OPERATORS[operator])
