"""The last calls about each object, for people who ask why nothing happens.

Little is kept: `EACH` calls of an object, the newest, for as many objects as `Recent` holds. A
call that ends as the one before it did is counted there and not kept by itself, so that what
happens all the time does not push out what matters. Texts of errors are without secrets, cut, and
limited in all; everything else of a call is a few hundred bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ccm.base import clock, redact
from ccm.base.recent import MOST_KEYS, Recent
from ccm.cloud.errors import CloudError
from ccm.cloud.machines import ListMachinesRequest, MachineRequest
from ccm.cloud.operation import Operation
from ccm.cloud.types import InstanceState, Route
from ccm.model import Node, Service

EACH = 8
"""Calls of one object that are kept."""

LONGEST = 300
"""Characters of an error's text that are kept."""

MOST_TEXT = 4 << 20
"""Characters of all texts together."""

NODE, SERVICE, PROVIDER_ID = "node", "service", "provider-id"
MACHINE, POOL = "machine", "pool"
"""Kinds of objects that a call may be about: of a provider ID where the old interface names no
node; of a Machine the bare name, as a daemon has those of one namespace."""

WAITING, RUNNING, OK, CANCELED = "waiting", "running", "ok", "canceled"
"""How a call stands that raised no CloudError: it waits for the rate limit, runs, or ended."""

Key = tuple[str, str]
"""Kind and name, such as `Node.name` or `Service.key`; both empty: of no object."""

NOBODY: Key = ("", "")


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """One call, or several in a row that ended alike; times and text are of the last.

    Attributes:
        verb: the method.
        began: monotonic time.
        deadline_s: how long it may take once it runs.
        state: `WAITING`, `RUNNING`, `OK`, `CANCELED`, or the class of the error.
        text: of the error, without secrets.
        answer: what was answered, where that is one word.
        took_s: how long it took.
        times: how many they are.
    """

    verb: str
    began: float
    deadline_s: float
    state: str = WAITING
    text: str = ""
    answer: str = ""
    took_s: float = 0.0
    times: int = 1

    def is_like(self, other: Call) -> bool:
        """Whether both ended alike; texts may carry a number of each attempt."""
        mine = (self.verb, self.state, self.answer)
        return mine == (other.verb, other.state, other.answer)


class History:
    """The last calls, by what they were about.

    Args:
        most_keys: objects that are remembered.
        most_text: characters of all errors that are remembered.
    """

    def __init__(self, most_keys: int = MOST_KEYS, most_text: int = MOST_TEXT) -> None:
        self._most_text = most_text
        self._text = 0
        self._calls: Recent[Key, tuple[Call, ...]] = Recent(most_keys, dropped=self._dropped)

    def of(self, key: Key) -> Sequence[Call]:
        """Calls about an object, the oldest first."""
        return self._calls.of(key) or ()

    def begin(self, operation: Operation) -> Entry:
        """A call begins, and ends with the block."""
        key = about(operation.arguments)
        call = Call(verb=operation.verb, began=clock.monotonic(), deadline_s=operation.deadline_s)
        self._keep(key, (*self.of(key), call))
        return Entry(self, key, call)

    def end(self, key: Key, call: Call) -> None:
        """A call has ended."""
        known = self.of(key)
        before = known[known.index(call) - 1] if call in known[1:] else None
        if before is not None and before.is_like(call):
            call.times += before.times
            self._text -= len(before.text)
            self._keep(key, tuple(each for each in known if each is not before))
        if call in known:
            self._text += len(call.text)
        while self._text > self._most_text and self._calls.drop_oldest():
            pass

    def _keep(self, key: Key, calls: tuple[Call, ...]) -> None:
        if len(calls) > EACH:
            self._text -= len(calls[0].text)
            calls = calls[1:]
        self._calls.note(key, calls)

    def _dropped(self, calls: tuple[Call, ...]) -> None:
        self._text -= sum(len(call.text) for call in calls)


class Entry:
    """A call while it runs; a context manager, whose end is the call's."""

    # No generator: this is around each call.
    __slots__ = ("_call", "_history", "_key")

    def __init__(self, history: History, key: Key, call: Call) -> None:
        self._history = history
        self._key = key
        self._call = call

    def __enter__(self) -> Self:
        return self

    def running(self) -> None:
        """It waits for its turn no more."""
        self._call.state = RUNNING
        self._call.began = clock.monotonic()

    def answered(self, answer: object) -> None:
        """The cloud answered."""
        if isinstance(answer, bool):
            self._call.answer = "yes" if answer else "no"
        elif isinstance(answer, InstanceState):
            self._call.answer = _said(answer)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        call = self._call
        call.took_s = clock.monotonic() - call.began
        if error is None:
            call.state = OK
        elif isinstance(error, asyncio.CancelledError):
            call.state = CANCELED
        else:
            call.state = type(error).__name__
            call.text = text_of(error)
        self._history.end(self._key, call)


def text_of(error: BaseException) -> str:
    """What an error says, on one line, without secrets, and not too long."""
    said = str(error) if isinstance(error, CloudError) else f"{type(error).__name__}: {error}"
    said = " ".join(redact.words(said).split())
    if not said.isprintable():
        said = "".join(each if each.isprintable() else "?" for each in said)
    return said if len(said) <= LONGEST else f"{said[: LONGEST - 3]}..."


def about(arguments: Mapping[str, object]) -> Key:
    """What a call is about, from its arguments by their names."""
    for name, value in arguments.items():
        if isinstance(value, Node):
            return NODE, value.name
        if isinstance(value, Service):
            return SERVICE, value.key
        if isinstance(value, Route):
            return NODE, value.target_node
        if isinstance(value, MachineRequest):
            return MACHINE, value.identity.name
        if isinstance(value, ListMachinesRequest):
            return POOL, value.pool
        if name == "node_name":
            return NODE, str(value)
        if name == "provider_id":
            return PROVIDER_ID, str(value)
    return NOBODY


def _said(answer: InstanceState) -> str:
    return "gone" if answer.power is None else answer.power.value
