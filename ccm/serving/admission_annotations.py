"""A webhook that checks the annotations of Services against a schema.

Only what a write changes is judged. A Service that was wrong before the webhook was there can
still be updated by controllers, be deleted and lose its finalizers; a value that was wrong
already is a warning when something beside it changes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ccm.model import Service
from ccm.serving.admission import ALLOWED, CREATE, UPDATE, Answer, GroupVersionKind, Request

MOST_WARNINGS = 10
"""Warnings in one answer; an API server drops those beyond 4 KiB anyway."""

_LONGEST = 63
"""Characters of a name that are compared with known ones: no valid name has more after its
slash, and nobody has checked yet that this one is valid."""

_SERVICE = GroupVersionKind(version="v1", kind="Service")
_DECODER = msgspec.json.Decoder(Service | None)


class Rule(Protocol):
    """One annotation of a schema."""

    @property
    def name(self) -> str:
        """The whole name."""
        ...

    def fault(self, text: str) -> str:
        """What is wrong with a text, one sentence; empty if it is a value."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Which annotations there are.

    Attributes:
        rules: those whose values are checked.
        prefixes: beginnings of names that have a meaning; a name that equals one is known.
    """

    rules: Sequence[Rule] = ()
    prefixes: Sequence[str] = ()


class ServiceAnnotations:
    """Decides about the writes of Services.

    Args:
        schema: the schema of now; it may change while the process runs.
        concerns: whether a Service is one whose annotations are read.
    """

    def __init__(self, schema: Callable[[], Schema], concerns: Callable[[Service], bool]) -> None:
        self._schema = schema
        self._concerns = concerns

    async def __call__(self, request: Request) -> Answer:
        """Refuse wrong values; raises `msgspec.DecodeError` for what is no Service."""
        if request.kind != _SERVICE or request.sub_resource:
            return ALLOWED
        if request.operation not in (CREATE, UPDATE):
            return ALLOWED
        service = _DECODER.decode(request.object)
        if service is None or service.is_deleting or not self._concerns(service):
            return ALLOWED
        old = _DECODER.decode(request.old_object)
        # What nobody read before counts as written now.
        before = old.annotations if old is not None and self._concerns(old) else {}
        return judge(self._schema(), before, service.annotations)


def judge(schema: Schema, before: Mapping[str, str], after: Mapping[str, str]) -> Answer:
    """Whether annotations may change from one state to another."""
    changed = {name for name, text in after.items() if before.get(name) != text}
    rules = {rule.name: rule for rule in schema.rules}
    strangers = sorted(name for name in changed if _is_unknown(name, rules, schema.prefixes))
    if not strangers and changed.isdisjoint(rules):
        return ALLOWED
    found = {name: rules[name].fault(after[name]) for name in rules if name in after}
    wrong = [fault for name, fault in found.items() if fault and name in changed]
    warnings = [_unknown(name, rules, schema.prefixes) for name in strangers[:MOST_WARNINGS]]
    warnings += [fault for name, fault in found.items() if fault and name not in changed]
    return Answer(
        allowed=not wrong, message="; ".join(wrong), warnings=tuple(warnings[:MOST_WARNINGS])
    )


def _is_unknown(name: str, rules: Mapping[str, Rule], prefixes: Sequence[str]) -> bool:
    return name not in rules and name not in prefixes and name.startswith(tuple(prefixes))


def _unknown(name: str, rules: Mapping[str, Rule], prefixes: Sequence[str]) -> str:
    prefix = max((one for one in prefixes if name.startswith(one)), key=len)
    # Without what they share, or all would look alike.
    ends = {rule.removeprefix(prefix): rule for rule in rules}
    close = difflib.get_close_matches(name.removeprefix(prefix)[:_LONGEST], ends, n=1)
    right = f"did you mean {ends[close[0]]}?" if close else f"known: {', '.join(sorted(rules))}"
    return f"annotation {name} is unknown and has no effect; {right}"
