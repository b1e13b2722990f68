"""The controllers and webhooks of the daemon, and what a list of their names means.

A further controller is a folder in `ccm.controllers`, and here an import and a base: the flags stay
known to the type checker.

An alias is accepted wherever a controller is named, and so is a former name; a client name
is the service account that the API server's built-in roles know, and it is no alias.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ccm.app.machinecontrollers import MANIFESTS as MACHINES
from ccm.controllers.node.manifest import NodeFlags
from ccm.controllers.nodelifecycle.manifest import NodeLifecycleFlags
from ccm.controllers.route.manifest import RouteFlags
from ccm.controllers.service.manifest import ServiceFlags
from ccm.machines.flags import (
    MachineClassFlags,
    MachineDeploymentFlags,
    MachineFlags,
    MachineOvershootFlags,
    MachineSafetyFlags,
    MachineSetFlags,
)
from ccm.runtime.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class ControllerFlags(
    NodeFlags,
    NodeLifecycleFlags,
    ServiceFlags,
    RouteFlags,
    MachineClassFlags,
    MachineFlags,
    MachineSafetyFlags,
    MachineSetFlags,
    MachineDeploymentFlags,
    MachineOvershootFlags,
):
    """The flags of all controllers, which start in the order of these bases."""


MANIFESTS: tuple[Manifest[Any], ...] = tuple(
    MACHINES.get(base) or sys.modules[base.__module__].MANIFEST
    for base in ControllerFlags.__bases__
)
"""Each of the others stands in the module of its flags."""

FLAGS_OF: Mapping[str, type] = {
    manifest.alias: base
    for manifest, base in zip(MANIFESTS, ControllerFlags.__bases__, strict=True)
}
"""The flags of each controller, by its short name."""

ALIASES: Mapping[str, str] = {one.alias: one.name for one in MANIFESTS} | {
    one.former: one.name for one in MANIFESTS if one.former
}
"""Short and former names, by what they stand for now."""

ALL = "*"

SERVICE_ANNOTATIONS = "service-annotations"
"""The webhook that checks the annotations of Services."""

WEBHOOKS = (SERVICE_ANNOTATIONS,)
"""What `--webhooks` can name. A promise too: it is part of the URL that people register."""


def canonical(name: str) -> str:
    """The canonical name of a controller that is given by any of its names."""
    return ALIASES.get(name, name)


def resolve(requested: Iterable[str]) -> tuple[str, ...]:
    """The list with every alias, also one after `-`, replaced by its canonical name."""
    return tuple(
        f"-{canonical(entry[1:])}" if entry.startswith("-") else canonical(entry)
        for entry in requested
    )


def is_enabled(
    name: str, requested: Iterable[str], *, off_by_default: Collection[str] = ()
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
    return [one.name for one in MANIFESTS] + list(ALIASES)


def enabled(requested: Iterable[str]) -> tuple[Manifest[Any], ...]:
    """The controllers that a raw `--controllers` list turns on."""
    resolved = resolve(requested)
    off = {one.name for one in MANIFESTS if one.off_by_default}
    return tuple(one for one in MANIFESTS if is_enabled(one.name, resolved, off_by_default=off))


def strangers(kind: str, known: Collection[str]) -> Callable[[Iterable[str]], str]:
    """A check of a flag that lists names of a kind."""

    def check(requested: Iterable[str]) -> str:
        found = ", ".join(f'"{name}"' for name in unknown(requested, known))
        are = "are" if ", " in found else "is"
        listed = f"{are} not in the list of known {kind}; known: {', '.join(known)}"
        return f"{found} {listed}" if found else ""

    return check
