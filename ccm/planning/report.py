"""A forecast as lines that read like a diff, and as plain values for programs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby

from ccm.base import redact
from ccm.base.parsing import format_duration
from ccm.planning import changes
from ccm.planning.changes import Action, Change, Subject
from ccm.planning.forecast import Forecast, Told

SIGNS: Mapping[Action, str] = {Action.CREATE: "+", Action.CHANGE: "~", Action.DELETE: "-"}
"""What a line begins with."""

ATTENTION = "!"
"""What a line begins with about which a person may want to do something."""


def lines(found: Forecast) -> Iterator[str]:
    """The lines, object by object; a sign is at the beginning, or two blanks behind it."""
    told = [*((one, "held") for one in found.held), *((one, one.reason) for one in found.warnings)]
    subjects = {one.subject for one in found.changes} | {one.subject for one, _ in told}
    by_subject = {
        subject: list(each) for subject, each in groupby(found.changes, lambda one: one.subject)
    }
    for subject in sorted(subjects):
        yield str(subject)
        yield from (f"  {_change(one)}" for one in by_subject.get(subject, ()))
        for one, word in told:
            if one.subject == subject:
                yield f"  {ATTENTION} {word}: {_line(one.message)}"
    for name, why in found.left_out.items():
        yield f"{name} is {_line(why)}"
    for failure in found.failures:
        yield f"{ATTENTION} not known: {_line(failure)}"


def summary(found: Forecast) -> str:
    """One line about all of it."""
    parts = []
    if found.changes:
        objects = len({one.subject for one in found.changes})
        parts.append(f"{_count(len(found.changes), 'change')} to {_count(objects, 'object')}")
    elif not found.failures:
        parts.append("nothing to do")
    if found.held:
        parts.append(f"{_count(len(found.held), 'deletion')} held back")
    if found.failures:
        parts.append("incomplete: not all that matters is known")
    return "; ".join(parts)


def document(found: Forecast) -> Mapping[str, object]:
    """Everything as plain values."""
    return {
        "summary": summary(found),
        "changes": [
            {
                "object": _subject(one.subject),
                "action": one.action.value,
                "what": one.what,
                "old": one.old,
                "new": one.new,
                "afterSeconds": one.after_s,
                "note": one.note,
            }
            for one in found.changes
        ],
        "held": _told(found.held),
        "warnings": _told(found.warnings),
        "leftOut": dict(found.left_out),
        "failures": [_line(one) for one in found.failures],
    }


def _change(one: Change) -> str:
    sign = SIGNS[one.action]
    after = f"after {format_duration(timedelta(seconds=one.after_s))}" if one.after_s else ""
    if one.what == one.subject.kind:
        told = f"would delete{f' {after}' if after else ''}"
        return f"{sign} {told}{f' ({one.note})' if one.note else ''}"
    values = [_line(text) for text in (one.old, one.new) if text is not None]
    what = "" if one.what == changes.ROUTE else one.what
    told = ": ".join(filter(None, (what, " → ".join(values))))
    hints = ", ".join(filter(None, (after, one.note)))
    return f"{sign} {told}{f' ({hints})' if hints else ''}"


def _subject(one: Subject) -> Mapping[str, str]:
    return {"kind": one.kind, "namespace": one.namespace, "name": one.name}


def _told(found: Sequence[Told]) -> Sequence[Mapping[str, object]]:
    return [
        {
            "object": _subject(one.subject),
            "reason": one.reason,
            "message": _line(one.message),
        }
        for one in found
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _line(text: str) -> str:
    return " ".join(redact.words(text).split())
