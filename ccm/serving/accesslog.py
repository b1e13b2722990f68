"""Who was refused, and who used what few may: lines of the log from verbosity 1 on.

A line says what the caller has proved and what it asked for, never the query or a header, which
may hold secrets. Each kind of line has a rate of its own: nobody fills the log, or hides one kind
in a flood of another. How many lines were left out is said by the next of the kind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from ccm.base import clock, log
from ccm.base.bucket import Bucket
from ccm.serving.http import Request
from ccm.serving.identity import ANONYMOUS_NAME

LINES_PER_S, BURST = 1.0, 20
"""Rate of each kind of line."""

LONGEST = 256
"""Characters of a name or path that are shown."""

PRIVILEGED = ("/configz", "/explain")
"""Beginnings of what few may have; `/metrics` is asked for every few seconds, and is not here."""

_HARMLESS = ("GET", "HEAD")


class LineRates:
    """How often lines may be written that callers cause."""

    def __init__(self) -> None:
        self._buckets = defaultdict[str, Bucket](lambda: Bucket(qps=LINES_PER_S, burst=BURST))
        self._left_out = Counter[str]()

    def take(self, kind: str) -> dict[str, Any] | None:
        """What a line of this kind says beside its own facts; None: there are too many."""
        if not self._buckets[kind].take(clock.monotonic()):
            self._left_out[kind] += 1
            return None
        left_out = self._left_out.pop(kind, 0)
        return {"left_out": left_out} if left_out else {}


class AccessLog:
    """The lines about the callers of one server."""

    def __init__(self) -> None:
        self._log = log.logger("serving")
        self._rates = LineRates()

    def unauthorized(self, request: Request, error: Exception) -> None:
        """What the caller showed is wrong, and it got 401."""
        if facts := self._line("unauthorized", request):
            self._log.v(1).info("request is refused", status=401, **facts, error=str(error))

    def forbidden(self, request: Request) -> None:
        """The caller may not, and got 403."""
        kind = "anonymous" if request.user == ANONYMOUS_NAME else "forbidden"
        if facts := self._line(kind, request):
            self._log.v(1).info("request is refused", status=403, **facts)

    def unanswered(self, request: Request, error: Exception) -> None:
        """Nobody could tell whether the caller may, and it got 500; a warning."""
        if facts := self._line("unanswered", request):
            self._log.warning(
                "authorization check failed, answering 500", **facts, error=str(error)
            )

    def allowed(self, request: Request) -> None:
        """The caller may; only what few may is worth a line."""
        is_rare = request.method not in _HARMLESS or request.path.startswith(PRIVILEGED)
        if is_rare and (facts := self._line("privileged", request)):
            self._log.v(1).info("privileged request", **facts)

    def _line(self, kind: str, request: Request) -> dict[str, Any] | None:
        """The facts of a line; None where there are too many of its kind."""
        if (left_out := self._rates.take(kind)) is None:
            return None
        facts = {
            "user": request.user[:LONGEST],
            "verb": request.method.lower()[:LONGEST],
            "path": request.path[:LONGEST],
            "client": request.caller.address,
        }
        return {name: value for name, value in facts.items() if value} | left_out
