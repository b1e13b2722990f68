"""The Service annotations of the simulated cloud, as one schema.

Reading, the text of every fault and the table for people all follow from `SCHEMA`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from ccm import cloud
from ccm.base import durations

T = TypeVar("T")

PREFIX = "load-balancer.sim.cloud/"
"""What the names of all of them begin with. A promise to old clusters."""

SIZES = ("small", "large")
SHORTEST_INTERVAL = timedelta(seconds=1)
LONGEST_INTERVAL = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation(Generic[T]):
    """One annotation.

    Attributes:
        name: the whole name.
        expects: its values, in words.
        default: the value of a Service without it.
        shown: the default as one would write it.
        help: what it does, one sentence.
        parse: text -> value; ValueError for any other.
    """

    name: str
    expects: str
    default: T
    shown: str
    help: str
    parse: Callable[[str], T]

    def read(self, service: cloud.Service) -> T:
        """The value that a Service asks for.

        Raises:
            InvalidArgument: the text is no value; the message says what is expected.
        """
        text = service.annotations.get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text.strip())
        except ValueError as error:
            raise cloud.InvalidArgument(
                f"annotation {self.name}: {text!r} is not understood; expected {self.expects}"
            ) from error


def _bool(text: str) -> bool:
    found = cloud.parse_bool(text)
    if found is None:
        raise ValueError(text)
    return found


def _size(text: str) -> str:
    if text not in SIZES:
        raise ValueError(text)
    return text


def _interval(text: str) -> timedelta:
    found = durations.parse_duration(text)
    if not SHORTEST_INTERVAL <= found <= LONGEST_INTERVAL:
        raise ValueError(text)
    return found


INTERNAL = Annotation(
    name=PREFIX + "internal",
    expects="true or false",
    default=False,
    shown="false",
    help="Give the load balancer an address that only the private network can reach.",
    parse=_bool,
)
SIZE = Annotation(
    name=PREFIX + "size",
    expects="small or large",
    default="small",
    shown="small",
    help="How much traffic the load balancer is made for.",
    parse=_size,
)
HEALTH_CHECK_INTERVAL = Annotation(
    name=PREFIX + "health-check-interval",
    expects="a duration from 1s to 5m",
    default=timedelta(seconds=10),
    shown="10s",
    help="Time between two checks of one member.",
    parse=_interval,
)

SCHEMA: tuple[Annotation[bool] | Annotation[str] | Annotation[timedelta], ...] = (
    INTERNAL,
    SIZE,
    HEALTH_CHECK_INTERVAL,
)
"""All of them."""


def table() -> str:
    """The annotations as a Markdown table."""
    rows = ["| annotation | values | default | effect |", "| --- | --- | --- | --- |"]
    rows += [f"| `{one.name}` | {one.expects} | `{one.shown}` | {one.help} |" for one in SCHEMA]
    return "\n".join(rows)
