"""Scripted faults: which calls of the cloud go wrong, how, and how often. No I/O.

A script is a list of faults in the order in which they were added. For every call,
each matching `latency` fault adds its delay, and the first other matching fault
decides the outcome. A fault matches by operation and instance (shell patterns), may
let the first calls pass (`skip`), strike a number of times (`count`) and only within
a window of time (`start_s`, `for_s`, counted from its addition).

With `applied` the operation takes effect and only the answer is lost: the crash
point that makes clients create things twice.
"""

from __future__ import annotations

import fnmatch
from typing import Literal

import msgspec

from ccm.base import clock

Kind = Literal[
    "error",
    "rate_limit",
    "garbage",
    "empty",
    "hang",
    "drop",
    "novelty",
    "latency",
    "deaf",
    "doomed",
]

MEANINGS: dict[Kind, str] = {
    "error": "answers with `status`, `code` and `message`",
    "rate_limit": "answers 429 with a Retry-After of `retry_after_s` seconds",
    "garbage": "answers `status` (default 200) with `body` instead of the real one",
    "empty": "answers `status` (default 200) with an empty body",
    "hang": "answers nothing for `delay_s` seconds (default 600), then drops the connection",
    "drop": "cuts the connection without an answer",
    "novelty": "answers rightly, but with fields, a state and an address nobody documented",
    "latency": "answers rightly, `delay_s` seconds later",
    "deaf": "answers rightly, but the instance of the answer runs without ever becoming a node",
    "doomed": "answers rightly, but the instance of the answer is in `error`, for `message`",
}

GARBAGE = "<html><body>Bad Gateway"
HANG_S = 600.0


def novel(answer: object) -> object:
    """A right answer as a later version of the cloud might give it."""
    if isinstance(answer, dict):
        changed = {name: novel(value) for name, value in answer.items()} | {"novelty": {"is": [1]}}
        if "state" in answer:
            changed["state"] = "dreaming"
        if "labels" in answer:
            changed["labels"] = answer["labels"]
        if "addresses" in answer:
            pigeon = {"kind": "carrier_pigeon", "value": "coo", "ring": 7}
            changed["addresses"] = [pigeon, *answer["addresses"]]
        return changed
    if isinstance(answer, list | tuple):
        return [novel(value) for value in answer]
    return answer


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One scripted fault; fields a kind does not name are ignored.

    `count` None means without end, `for_s` None means for ever.
    """

    kind: Kind
    operation: str = "*"
    instance: str = "*"
    skip: int = 0
    count: int | None = None
    start_s: float = 0.0
    for_s: float | None = None
    applied: bool = False
    status: int | None = None
    code: str = "internal"
    message: str = "scripted fault"
    retry_after_s: float = 1.0
    delay_s: float | None = None
    body: str = GARBAGE


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What a fault can match: the operation and the words that name its instance."""

    operation: str
    instances: tuple[str, ...] = ()


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a call: wait so long, then suffer the fault, if any."""

    delay_s: float = 0.0
    fault: Fault | None = None


class _Armed:
    __slots__ = ("added", "fault", "matched")

    def __init__(self, fault: Fault, added: float) -> None:
        self.fault = fault
        self.added = added
        self.matched = 0

    def strikes(self, call: Call, now: float) -> bool:
        """Whether the fault hits this call; counts the calls that match."""
        fault = self.fault
        age = now - self.added
        if age < fault.start_s or (fault.for_s is not None and age >= fault.start_s + fault.for_s):
            return False
        if not fnmatch.fnmatchcase(call.operation, fault.operation):
            return False
        names = call.instances or ("",)
        if not any(fnmatch.fnmatchcase(name, fault.instance) for name in names):
            return False
        self.matched += 1
        struck = self.matched - fault.skip
        return struck > 0 and (fault.count is None or struck <= fault.count)


class Script:
    """The faults that are armed, in order."""

    def __init__(self) -> None:
        self._armed: list[_Armed] = []

    def __len__(self) -> int:
        return len(self._armed)

    def add(self, fault: Fault) -> None:
        """Arm a fault from now on."""
        self._armed.append(_Armed(fault, clock.monotonic()))

    def clear(self) -> None:
        """Disarm every fault."""
        self._armed.clear()

    def judge(self, call: Call) -> Verdict:
        """Decide what becomes of a call, and count it."""
        now = clock.monotonic()
        delay_s = 0.0
        for armed in self._armed:
            fault = armed.fault
            if not armed.strikes(call, now):
                continue
            if fault.kind != "latency":
                return Verdict(delay_s=delay_s, fault=fault)
            delay_s += fault.delay_s or 0.0
        return Verdict(delay_s=delay_s)
