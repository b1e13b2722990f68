"""What a check found: a verdict, one line about it, and what to do next. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

SHOWN = 5
"""How many of many names are told before the rest is only counted."""


class Verdict(Enum):
    """How it is."""

    OK = "ok"
    WARN = "warn"
    """The daemon works, but somebody should look at it."""
    FAIL = "fail"
    """The daemon cannot do its work, or a part of it."""
    SKIP = "skip"
    """Not looked at, because something it needs is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The outcome of one check.

    Attributes:
        verdict: how it is.
        found: what was found, one line.
        details: more about it, a line each.
        advice: what to do next, a line each; empty when nothing has to be done.
        cause: the check whose finding keeps this one from being made; empty if none does.
        without: the checks that are not made because of this finding.
    """

    verdict: Verdict
    found: str
    details: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    cause: str = ""
    without: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether checks that build on this one can be made."""
        return self.verdict in (Verdict.OK, Verdict.WARN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finding with the name of its check and the seconds it took."""

    check: str
    finding: Finding
    seconds: float = 0.0


def ok(found: str, *details: str) -> Finding:
    """All is well."""
    return Finding(verdict=Verdict.OK, found=found, details=details)


def warn(found: str, *advice: str, details: Sequence[str] = ()) -> Finding:
    """The daemon works, but somebody should look at it."""
    return Finding(verdict=Verdict.WARN, found=found, details=tuple(details), advice=advice)


def fail(found: str, *advice: str, details: Sequence[str] = ()) -> Finding:
    """The daemon cannot do its work."""
    return Finding(verdict=Verdict.FAIL, found=found, details=tuple(details), advice=advice)


def skip(found: str, *, cause: str = "") -> Finding:
    """Not looked at."""
    return Finding(verdict=Verdict.SKIP, found=found, cause=cause)


def failed(results: Sequence[Result]) -> bool:
    """Whether any check failed."""
    return any(result.finding.verdict is Verdict.FAIL for result in results)


def text(result: Result) -> Iterator[str]:
    """The lines for people, the verdict first; none for what its cause has told already."""
    finding = result.finding
    if finding.cause:
        return
    yield f"{finding.verdict.value:<4}  {result.check}: {finding.found}"
    yield from (f"      {line}" for line in finding.details)
    yield from (f"      next: {line}" for line in finding.advice)
    if finding.without:
        yield f"      not looked at without it: {', '.join(finding.without)}"


def summary(results: Sequence[Result]) -> str:
    """One line about all of them."""
    counts = Counter(result.finding.verdict for result in results)
    parts = [f"{counts[Verdict.OK]} ok"]
    for verdict, one, more in (
        (Verdict.WARN, "warning", "warnings"),
        (Verdict.FAIL, "failure", "failures"),
        (Verdict.SKIP, "not made", "not made"),
    ):
        if counts[verdict]:
            parts.append(count(counts[verdict], one, more))
    return f"{count(len(results), 'check')}: {', '.join(parts)}"


def document(results: Sequence[Result]) -> Mapping[str, object]:
    """Everything as plain values, for programs."""
    return {
        "healthy": not failed(results),
        "checks": [
            {
                "check": result.check,
                "verdict": result.finding.verdict.value,
                "found": result.finding.found,
                "details": list(result.finding.details),
                "advice": list(result.finding.advice),
                "cause": result.finding.cause,
                "seconds": round(result.seconds, 3),
            }
            for result in results
        ],
    }


def some(names: Sequence[str]) -> str:
    """The names, or the first few and how many more there are."""
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} more"


def count(number: int, one: str, more: str = "") -> str:
    """A number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def which(number: int, whole: int, noun: str, one: str, more: str) -> str:
    """`1 of 3 nodes has`, `2 of 3 nodes have`: a part of a whole, and its verb."""
    return f"{number} of {count(whole, noun)} {one if number == 1 else more}"
