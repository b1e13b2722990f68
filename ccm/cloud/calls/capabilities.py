"""Where a provider's object for each interface is found."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ccm.cloud.errors import Unimplemented
from ccm.cloud.interface import (
    Cloud,
    InstanceStates,
    InstancesV2,
    Inventory,
    LoadBalancer,
    LoadBalancerDigests,
    LoadBalancerRemoval,
    Routes,
)
from ccm.cloud.legacy import Instances, Zones
from ccm.cloud.machines import MachineDriver, MachineMetrics, SpecValidation

CAPABILITIES: Mapping[type, tuple[str, str]] = {
    InstancesV2: ("instances", "instances"),
    InstanceStates: ("instances", "instance states"),
    Instances: ("instances_v1", "instances by provider ID"),
    Zones: ("zones", "zones"),
    Inventory: ("inventory", "an inventory"),
    LoadBalancer: ("load_balancer", "load balancers"),
    LoadBalancerDigests: ("load_balancer", "digests of load balancers"),
    LoadBalancerRemoval: ("load_balancer", "removal of load balancers by name"),
    Routes: ("routes", "routes"),
    MachineDriver: ("machines", "machines"),
    SpecValidation: ("machines", "a check of provider specs"),
    MachineMetrics: ("machines", "metric labels of machines"),
}
"""Interface -> the field of `Cloud` that holds it, and its name in messages."""

_ON_THE_SAME_OBJECT = (
    InstanceStates,
    LoadBalancerDigests,
    LoadBalancerRemoval,
    SpecValidation,
    MachineMetrics,
)
"""Interfaces that the object of another may have besides."""

_FACE_OF: Mapping[Callable[..., Any], type] = {
    method: face
    for face in CAPABILITIES
    for _, method in inspect.getmembers(face, inspect.isfunction)
}


def brings_credentials(method: Callable[..., Any]) -> bool:
    """Whether each call of a method has credentials of its own, not those of the provider."""
    return CAPABILITIES[_FACE_OF[method]][0] == "machines"


def offered(cloud: Cloud, face: type) -> object | None:
    """The provider's object with that interface; None where it has none."""
    found: object | None = getattr(cloud, CAPABILITIES[face][0])
    return None if face in _ON_THE_SAME_OBJECT and not isinstance(found, face) else found


def bound(cloud: Cloud, method: Callable[..., Any]) -> Callable[..., Any]:
    """The provider's own method for one of an interface; raises Unimplemented."""
    face = _FACE_OF[method]
    found = offered(cloud, face)
    if found is None:
        raise Unimplemented(f"this cloud does not offer {CAPABILITIES[face][1]}")
    own: Callable[..., Any] = getattr(found, method.__name__)
    return own
