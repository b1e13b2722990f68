"""Faults that strike one call on its way, each in a way of its own, exactly once.

`CLOUD` is what can happen between the daemon and the cloud, `API` between the daemon and the
API server. A `Strike` lies in wait for one call and says afterwards whether it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.faults import Action, Cut, Exchange, FaultProxy, Match, Reset, RewriteBody, Rule
from tests.faults.actions import Hold, Point, Respond
from tests.scenario import harness

Fault = Callable[[], Action]
"""Makes the fault, afresh for each strike."""

CLOUD_TIMEOUT = "2s"
"""How long the provider waits for one answer of the cloud; shorter than a strike that holds."""


def _cloud_says(status: int, code: str, **headers: str) -> Fault:
    body = {"error": {"code": code, "message": "struck by the test", "request_id": "r"}}
    passed = {name.replace("_", "-"): text for name, text in headers.items()}
    return lambda: Respond(status, body, headers=passed)


CLOUD: Mapping[str, Fault] = {
    "500": _cloud_says(500, "internal"),
    "throttled": _cloud_says(429, "rate_limited", Retry_After="1"),
    "reset": Reset,
    "answer lost": lambda: Reset(at=Point.TOOK_EFFECT),
    "no answer": lambda: Hold(asyncio.Event()),
    "answer too late": lambda: Hold(asyncio.Event(), at=Point.TOOK_EFFECT),
    "garbage": lambda: RewriteBody(lambda _: b"<html>"),
}
"""Name -> what happens to a call to the cloud."""

API: Mapping[str, Fault] = {
    "500": lambda: harness.refusal(500),
    "throttled": lambda: harness.refusal(429, reason="TooManyRequests", Retry_After="1"),
    "conflict": lambda: harness.refusal(409, reason="Conflict"),
    "reset": Reset,
    "cut": Cut,
    "answer lost": lambda: Reset(at=Point.TOOK_EFFECT),
    "garbage": lambda: RewriteBody(lambda _: b"<html>"),
}
"""Name -> what happens to a call to the API server."""

API_SLOW: Mapping[str, Fault] = {
    "no answer": lambda: Hold(asyncio.Event()),
    "answer too late": lambda: Hold(asyncio.Event(), at=Point.TOOK_EFFECT),
}
"""Those that last as long as the daemon waits for an answer of the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One external call in the course of a piece of work.

    Attributes:
        name: for people.
        method: pattern of its method.
        path: pattern of its path.
        nth: the how manieth of its kind.
    """

    name: str
    method: str
    path: str
    nth: int = 1


class Strike:
    """A fault that lies in wait.

    Args:
        proxy: where.
        step: for which call.
        about: tells the calls about the object in question.
        fault: what happens then.
    """

    def __init__(
        self, proxy: FaultProxy, step: Step, about: Callable[[Exchange], bool], fault: Fault
    ) -> None:
        self._proxy = proxy
        match = Match(method=step.method, path=step.path, where=about, stream=False)
        self._rule: Rule = proxy.on(match, fault(), nth=step.nth)

    @property
    def came(self) -> bool:
        """Whether the call was struck."""
        return len(self._rule.fired) == 1
