"""Where a provider's object for each interface is found."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ccm.cloud.operation import DECLARED

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

_NAMES = {method.__name__ for method in _FACE_OF}


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


def incomplete(cloud: Cloud) -> Sequence[str]:
    """Return each method that an object of a provider lacks or has in another form.

    Interfaces beside another are optional: they count from their first method on.
    """
    return [fault for face in CAPABILITIES for fault in _faults(cloud, face)]


def _faults(cloud: Cloud, face: type) -> Iterator[str]:
    field = CAPABILITIES[face][0]
    found: object | None = getattr(cloud, field)
    methods = [method for method in _FACE_OF if _FACE_OF[method] is face and _is_called(method)]
    is_optional = face in _ON_THE_SAME_OBJECT
    if is_optional and not any(hasattr(found, method.__name__) for method in methods):
        return
    for method in methods if found is not None else ():
        if fault := _fault(found, method):
            yield f"{field}: {type(found).__name__}.{fault}"


def _is_called(method: Callable[..., Any]) -> bool:
    """Whether the daemon calls it: what is waited for is declared, what is computed is not."""
    name = method.__name__
    return name in DECLARED or not (name.startswith("_") or inspect.iscoroutinefunction(method))


def _fault(found: object, method: Callable[..., Any]) -> str:
    name, own = method.__name__, getattr(found, method.__name__, None)
    if not callable(own):
        others = {one for one in dir(found) if not one.startswith("_")}
        near = difflib.get_close_matches(name, others - _NAMES, n=1)
        hint = f"; is {near[0]} misspelt?" if near else "; write it"
        return f"{name} is missing{hint}"
    if inspect.iscoroutinefunction(method):
        if not _is_async(own):
            return f"{name} cannot be awaited; write `async def`"
    elif inspect.iscoroutinefunction(own):
        return f"{name} has to be awaited; write `def`"
    parameters = [*inspect.signature(method).parameters][1:]
    try:
        inspect.signature(own).bind(*parameters)
    except TypeError:
        return f"{name} does not take its arguments; they are ({', '.join(parameters)})"
    except ValueError:  # written in C
        pass
    return ""


def _is_async(own: Any) -> bool:
    """Whether a call can be awaited, also through decorators and of an object that is called."""
    forms = (own, inspect.unwrap(own), type(own).__call__)
    return any(inspect.iscoroutinefunction(form) for form in forms)
