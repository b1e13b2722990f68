"""The Service annotations of the simulated cloud, as one schema.

Reading, the text of every fault and the table for people all follow from `SCHEMA`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from ccm import cloud
from ccm.base import parsing

PREFIX = "load-balancer.sim.cloud/"
"""What the names of all of them begin with. A promise to old clusters."""

SIZES = ("small", "large")
SHORTEST_INTERVAL = timedelta(seconds=1)
LONGEST_INTERVAL = timedelta(minutes=5)


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
    found = parsing.parse_duration(text)
    if not SHORTEST_INTERVAL <= found <= LONGEST_INTERVAL:
        raise ValueError(text)
    return found


INTERNAL = cloud.ServiceAnnotation(
    name=PREFIX + "internal",
    expects="true or false",
    default=False,
    shown="false",
    help="Give the load balancer an address that only the private network can reach.",
    parse=_bool,
)
SIZE = cloud.ServiceAnnotation(
    name=PREFIX + "size",
    expects="small or large",
    default="small",
    shown="small",
    help="How much traffic the load balancer is made for.",
    parse=_size,
)
HEALTH_CHECK_INTERVAL = cloud.ServiceAnnotation(
    name=PREFIX + "health-check-interval",
    expects="a duration from 1s to 5m",
    default=timedelta(seconds=10),
    shown="10s",
    help="Time between two checks of one member.",
    parse=_interval,
)

SCHEMA: tuple[cloud.ServiceAnnotation[Any], ...] = (
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
