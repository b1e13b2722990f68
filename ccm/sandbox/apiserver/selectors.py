"""Label and field selectors in their text form: parse, then match.

Label selectors are those of `ccm.model.selectors`. Field selectors: `path=value`, `path==value`,
`path!=value`, joined by commas, with `\\,`, `\\=` and `\\\\` standing for the plain characters.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ccm.model.selectors import BadSelectorError, Requirement, parse_labels
from ccm.sandbox.apiserver import kinds, paths


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Requirements on labels and on fields; without any it matches everything."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if everything matches."""
        return not self.labels and not self.fields

    def matches(self, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
        """Whether an object with these labels and fields is selected."""
        return all(term.matches(labels) for term in self.labels) and all(
            term.matches(fields) for term in self.fields
        )


def parse(kind: kinds.Kind, label_text: str, field_text: str) -> Selector:
    """The selector that two query parameters describe.

    Raises:
        BadSelectorError: the text is malformed, or the kind has no such field.
    """
    return Selector(labels=parse_labels(label_text), fields=_parse_fields(kind, field_text))


def _parse_fields(kind: kinds.Kind, text: str) -> tuple[Requirement, ...]:
    known = {name for name, _, _ in kind.selectable} | {"metadata.name"}
    if kind.namespaced:
        known.add("metadata.namespace")
    terms = []
    for part in re.split(r"(?<!\\),", text):
        if not part:
            continue
        found = re.fullmatch(r"(.*?)(!=|==|=)(.*)", part, re.DOTALL)
        if found is None:
            raise BadSelectorError(f"invalid selector: '{text}'; can't understand '{part}'")
        key, operator, value = found.groups()
        if key not in known:
            raise BadSelectorError(f"field label not supported: {key}")
        plain = re.sub(r"\\([\\,=])", r"\1", value)
        terms.append(Requirement(key=key, values=frozenset((plain,)), wanted=operator != "!="))
    return tuple(terms)


def fields_of(kind: kinds.Kind, body: Mapping[str, Any]) -> dict[str, str]:
    """The values of an object's selectable fields; an absent one is empty, not missing."""
    metadata = body["metadata"]
    found = {
        "metadata.name": metadata.get("name", ""),
        "metadata.namespace": metadata.get("namespace", ""),
    }
    for name, places, default in kind.selectable:
        values = [each for place in places for each in paths.find(body, f".{place}")]
        shown = (paths.text(each) for each in values if each is not None)
        found[name] = next(filter(None, shown), default)
    return found
