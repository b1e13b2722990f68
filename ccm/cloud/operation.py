"""What is known of a method of the interfaces before it is called, declared on the method itself.

Every method that the daemon waits for carries `@operation(...)`: without it the handle refuses
to call it, so that no change can be forgotten in a list kept elsewhere.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Args = TypeVarTuple("Args")
M = TypeVar("M", bound=Callable[..., Awaitable[Any]])

READ_S = 60.0
"""Deadline of a call that asks one question."""

LISTING_S = 300.0
"""Deadline of a listing, which is many requests under one call."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What holds for every call of one method.

    Attributes:
        parameters: their names, without `self`.
        deadline_s: how long a call may take where the provider does not say.
        change: whether it changes something in the cloud; a stop waits for those.
        subject: from the arguments to what a call is about; see `Operation`.
    """

    parameters: tuple[str, ...]
    deadline_s: float
    change: bool
    subject: Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call, as a value.

    Attributes:
        verb: the method.
        subject: what it is about, such as the UID of a Service: calls about one subject never
            overlap. Empty = it may run any number of times at once.
        arguments: by the names of the parameters.
        deadline_s: how long it may take.
        change: whether it changes something in the cloud.
    """

    verb: str
    subject: str
    arguments: Mapping[str, object]
    deadline_s: float
    change: bool


class Caller(Protocol):
    """Whatever calls a provider on behalf of somebody."""

    @property
    def name(self) -> str:
        """The provider's name."""

    @property
    def opening(self) -> int:
        """A number that changes when another provider object is in use."""

    @property
    def confirmed(self) -> set[str]:
        """UIDs of nodes without provider ID whose instance this opening has confirmed."""

    def offers(self, face: type) -> bool:
        """Whether the provider has that interface."""

    async def call(self, method: Callable[[Any, *Args], Awaitable[T]], *args: *Args) -> T:
        """Call a method, given as an attribute of its interface. Raises CloudError."""


DECLARED: dict[str, Declaration] = {}
"""Every operation by its name, filled as the interfaces are read."""


def operation(
    *,
    deadline_s: float = READ_S,
    change: bool = False,
    subject: Callable[..., str] = lambda **_: "",
) -> Callable[[M], M]:
    """Declare a method of an interface; see `Declaration`. `subject` gets keyword arguments.

    Raises:
        ValueError: a method of that name is declared otherwise: deadlines are set by the name.
    """

    def declare(method: M) -> M:
        parameters = tuple(inspect.signature(method).parameters)[1:]
        declared = Declaration(parameters, deadline_s, change, subject)
        if DECLARED.setdefault(method.__name__, declared) != declared:
            raise ValueError(f"operation {method.__name__!r} is declared already, and otherwise")
        return method

    return declare
