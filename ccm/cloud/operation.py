"""Declarations of the interface methods: deadline, subject, and whether they change resources.

Every async method that the daemon calls is decorated with `@operation(...)`. A `ProviderClient`
cannot call an undecorated method, so no declaration can be forgotten.
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
"""Default deadline in seconds of a call that reads one object."""

LISTING_S = 300.0
"""Deadline in seconds of a listing: one call that may send many requests."""


@dataclass(frozen=True, slots=True)
class OperationDeclaration:
    """Properties of every call of one method.

    Attributes:
        parameters: names of the parameters, without `self`.
        deadline_s: deadline of a call in seconds, unless the provider sets its own
            (`Limits.deadlines_s`).
        change: whether the method changes cloud resources; a shutdown waits for such calls.
        subject: function from the arguments to the subject of a call; see `ProviderCall`.
    """

    parameters: tuple[str, ...]
    deadline_s: float
    change: bool
    subject: Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCall:
    """One call to a provider: its method, arguments and limits.

    Attributes:
        verb: name of the method.
        subject: identifier of the object that the call is about, such as the UID of a Service. No
            call starts while an abandoned call with the same subject runs. Empty = always start.
        arguments: arguments by parameter name.
        deadline_s: deadline of the call in seconds.
        change: whether the call changes cloud resources.
    """

    verb: str
    subject: str
    arguments: Mapping[str, object]
    deadline_s: float
    change: bool


class ProviderClient(Protocol):
    """Client of a provider, such as `ccm.cloud.calls.client.CloudClient`."""

    @property
    def name(self) -> str:
        """The provider's name."""

    @property
    def provider_session(self) -> int:
        """Number of the provider session; changes when the provider is replaced."""

    @property
    def confirmed(self) -> set[str]:
        """UIDs of nodes without provider ID for which the provider session found an instance."""

    def offers(self, interface: type) -> bool:
        """Return whether the provider implements an interface."""

    async def call(self, method: Callable[[Any, *Args], Awaitable[T]], *args: *Args) -> T:
        """Call a method, given as an attribute of its interface class. Raises CloudError."""


DECLARATIONS: dict[str, OperationDeclaration] = {}
"""Every operation by name, filled when the interface modules are imported."""


def operation(
    *,
    deadline_s: float = READ_S,
    change: bool = False,
    subject: Callable[..., str] = lambda **_: "",
) -> Callable[[M], M]:
    """Declare a method of an interface; see `OperationDeclaration`.

    `subject` is called with the arguments of the method as keyword arguments.

    Raises:
        ValueError: a method of that name has another declaration; names must be unambiguous,
            because `Limits.deadlines_s` refers to them.
    """

    def declare(method: M) -> M:
        parameters = tuple(inspect.signature(method).parameters)[1:]
        declared = OperationDeclaration(parameters, deadline_s, change, subject)
        if DECLARATIONS.setdefault(method.__name__, declared) != declared:
            raise ValueError(f"operation {method.__name__!r} already has another declaration")
        return method

    return declare
