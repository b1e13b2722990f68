"""The controllers and webhooks of the daemon, and the evaluation of `--controllers`.

To add a controller, add a folder in `ccm.controllers`. In this module, import the class of its
flags, and add it to the bases of `ControllerFlags`. The bases are listed by hand so that the type
checker knows all flags.

Settings that name a controller also accept the controller's alias and former name. They do not
accept the name of the controller's API client, although a service account of that name is in the
API server's built-in roles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ccm.app.kubermaticcontrollers import MANIFESTS as KUBERMATIC
from ccm.app.machinecontrollers import MANIFESTS as MACHINES
from ccm.controllers.node.manifest import NodeFlags
from ccm.controllers.nodelifecycle.manifest import NodeLifecycleFlags
from ccm.controllers.route.manifest import RouteFlags
from ccm.controllers.service.manifest import ServiceFlags
from ccm.kubermatic.flags import (
    KubermaticDeploymentFlags,
    KubermaticMachineFlags,
    KubermaticSetFlags,
    NodeCSRApproverFlags,
)
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
    KubermaticMachineFlags,
    KubermaticSetFlags,
    KubermaticDeploymentFlags,
    NodeCSRApproverFlags,
):
    """The flags of all controllers; the order of the bases is the start order."""


MANIFESTS: tuple[Manifest[Any], ...] = tuple(
    MACHINES.get(base) or KUBERMATIC.get(base) or sys.modules[base.__module__].MANIFEST
    for base in ControllerFlags.__bases__
)
"""Manifests in start order.

A manifest that is neither in `MACHINES` nor in `KUBERMATIC` is in the module that declares the
controller's flags.
"""

FLAGS_OF: Mapping[str, type] = {
    manifest.alias: base
    for manifest, base in zip(MANIFESTS, ControllerFlags.__bases__, strict=True)
}
"""Alias of a controller -> class that declares its flags."""

ALIASES: Mapping[str, str] = {manifest.alias: manifest.name for manifest in MANIFESTS} | {
    manifest.former_name: manifest.name for manifest in MANIFESTS if manifest.former_name
}
"""Alias or former name of a controller -> its canonical name."""

ALL = "*"

SERVICE_ANNOTATIONS = "service-annotations"
"""The webhook that checks the annotations of Services."""

KUBERMATIC_MACHINES = "kubermatic-machines"
"""The webhook that sets defaults in Kubermatic's Machines and MachineDeployments."""

WEBHOOKS = (SERVICE_ANNOTATIONS, KUBERMATIC_MACHINES)
"""Names that `--webhooks` accepts. Never change a name: registered webhook URLs contain it."""

WEBHOOKS_OFF_BY_DEFAULT = (KUBERMATIC_MACHINES,)
"""Webhooks that `*` does not enable; Kubermatic's machine controllers are off by default too."""


def canonical(name: str) -> str:
    """Return the canonical name for an alias or former name; other names are returned unchanged."""
    return ALIASES.get(name, name)


def resolve(requested: Iterable[str]) -> tuple[str, ...]:
    """Return a value of `--controllers` with canonical names, also in entries such as `-ALIAS`."""
    return tuple(
        f"-{canonical(entry[1:])}" if entry.startswith("-") else canonical(entry)
        for entry in requested
    )


def is_enabled(
    name: str, requested: Iterable[str], *, off_by_default: Collection[str] = ()
) -> bool:
    """Return whether a list of canonical names enables a controller or webhook.

    The first entry `NAME` or `-NAME` decides. Without such an entry, `*` anywhere in the list
    enables the controller or webhook unless it is off by default. So a list without `*` disables
    everything that the list omits.
    """
    entries = list(requested)
    for entry in entries:
        if entry == name:
            return True
        if entry == f"-{name}":
            return False
    return ALL in entries and name not in off_by_default


def unknown_names(requested: Iterable[str], known: Collection[str]) -> list[str]:
    """Return the entries that are neither `*` nor a known name, without a leading `-`."""
    bare = (entry.removeprefix("-") for entry in requested if entry != ALL)
    return [name for name in bare if name not in known]


def known_names() -> list[str]:
    """Return all names that `--controllers` accepts besides `*`, canonical names first."""
    return [manifest.name for manifest in MANIFESTS] + list(ALIASES)


def enabled(requested: Iterable[str]) -> tuple[Manifest[Any], ...]:
    """Return the manifests of the controllers that a value of `--controllers` enables.

    They are in start order.
    """
    resolved = resolve(requested)
    off = {manifest.name for manifest in MANIFESTS if manifest.off_by_default}
    return tuple(
        manifest
        for manifest in MANIFESTS
        if is_enabled(manifest.name, resolved, off_by_default=off)
    )


def known_names_check(kind: str, known: Collection[str]) -> Callable[[Iterable[str]], str]:
    """Return the check function of a flag whose value lists names.

    Args:
        kind: plural noun for the names in the message, such as `webhooks`.
        known: accepted names.
    """

    def check(requested: Iterable[str]) -> str:
        listed = ", ".join(f'"{name}"' for name in unknown_names(requested, known))
        are = "are" if ", " in listed else "is"
        cause = f"{are} not in the list of known {kind}; known: {', '.join(known)}"
        return f"{listed} {cause}" if listed else ""

    return check
