"""Controllers and webhooks by name, and what a `--controllers` or `--webhooks` list means.

A canonical name, an alias, a client name and a metric name are promises: none is
ever changed or removed. All of them are the Go reference's own. An alias is
accepted wherever a controller is named, and so is a former name; a client name is the
service account that the API server's built-in roles know, and it is no alias.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

ALL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A controller as people, the API server and dashboards know it.

    Attributes:
        name: canonical; in flags, logs and health checks.
        alias: the short name that `--controllers` accepts too.
        client: user-agent suffix and service account; two controllers may share one.
        metric: label value of `running_managed_controllers`.
        former: a name from before it had the canonical one, or empty; accepted too.
        built: False while this version knows the name but has nothing to start.
    """

    name: str
    alias: str
    client: str
    metric: str
    former: str = ""
    built: bool = True


NODE = Controller(
    name="cloud-node-controller",
    alias="cloud-node",
    client="node-controller",
    metric="cloud-node",
)
NODE_LIFECYCLE = Controller(
    name="cloud-node-lifecycle-controller",
    alias="cloud-node-lifecycle",
    # One service account for both node controllers, as the built-in roles expect.
    client="node-controller",
    metric="cloud-node-lifecycle",
)
SERVICE = Controller(
    name="service-lb-controller",
    alias="service",
    client="service-controller",
    metric="service",
    # Deviation: the reference refuses the former names.
    former="service-controller",
)
ROUTE = Controller(
    name="node-route-controller",
    alias="route",
    client="route-controller",
    metric="route",
    former="route-controller",
)

CONTROLLERS = (NODE, NODE_LIFECYCLE, SERVICE, ROUTE)
ALIASES: Mapping[str, str] = {entry.alias: entry.name for entry in CONTROLLERS} | {
    entry.former: entry.name for entry in CONTROLLERS if entry.former
}
"""Short and former names, by what they stand for now."""

OFF_BY_DEFAULT: frozenset[str] = frozenset()
"""Controllers that `*` does not start. There are none."""


def canonical(name: str) -> str:
    """The canonical name of a controller that is given by any of its names."""
    return ALIASES.get(name, name)


SERVICE_ANNOTATIONS = "service-annotations"
"""The webhook that checks the annotations of Services."""

WEBHOOKS = (SERVICE_ANNOTATIONS,)
"""What `--webhooks` can name. A promise too: it is part of the URL that people register."""


def resolve(requested: Iterable[str], *, aliases: Mapping[str, str] = ALIASES) -> tuple[str, ...]:
    """The list with every alias, also one after `-`, replaced by its canonical name."""
    return tuple(
        f"-{aliases.get(entry[1:], entry[1:])}"
        if entry.startswith("-")
        else aliases.get(entry, entry)
        for entry in requested
    )


def is_enabled(
    name: str, requested: Iterable[str], *, off_by_default: Collection[str] = OFF_BY_DEFAULT
) -> bool:
    """Whether a resolved list turns a controller on.

    The first entry that names it decides; if none does, `*` anywhere in the list turns
    it on unless it is off by default. So a list without `*` turns off all it leaves out.
    """
    entries = list(requested)
    for entry in entries:
        if entry == name:
            return True
        if entry == f"-{name}":
            return False
    return ALL in entries and name not in off_by_default


def unknown(requested: Iterable[str], known: Collection[str]) -> list[str]:
    """The entries of a list, without their `-`, that are neither `*` nor a known name."""
    bare = (entry.removeprefix("-") for entry in requested if entry != ALL)
    return [name for name in bare if name not in known]


def known_names() -> list[str]:
    """Every word that `--controllers` accepts besides `*`: canonical names, then aliases."""
    return [entry.name for entry in CONTROLLERS] + list(ALIASES)


def enabled(requested: Iterable[str]) -> tuple[Controller, ...]:
    """The controllers that a raw `--controllers` list turns on and this version can start."""
    return tuple(entry for entry in _wanted(requested) if entry.built)


def disabled(requested: Iterable[str]) -> tuple[Controller, ...]:
    """The controllers that a raw `--controllers` list turns off."""
    wanted = _wanted(requested)
    return tuple(entry for entry in CONTROLLERS if entry not in wanted)


def notices(requested: Iterable[str]) -> list[str]:
    """One sentence if the list turns on controllers that come in a later version."""
    missing = [entry.name for entry in _wanted(requested) if not entry.built]
    if not missing:
        return []
    return [f"not started, because they come in a later version: {', '.join(missing)}"]


def _wanted(requested: Iterable[str]) -> list[Controller]:
    resolved = resolve(requested)
    return [entry for entry in CONTROLLERS if is_enabled(entry.name, resolved)]
