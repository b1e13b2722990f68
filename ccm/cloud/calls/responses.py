"""Whether a provider offers and answers what the interfaces promise. Pure.

Python does not hold a provider to its type hints, so they are held to here, field by field. An
answer of a wrong kind is a fault of the provider, never taken for an answer: a forgotten
`return` must not read as "gone" or as "no addresses", nor end in a provider ID.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from ccm.cloud.errors import Internal, Unimplemented
from ccm.cloud.interface import (
    Cloud,
    Instances,
    InstanceStates,
    InstancesV2,
    Inventory,
    LoadBalancer,
    LoadBalancerDigests,
    LoadBalancerRemoval,
    Routes,
    Zones,
)
from ccm.cloud.machines import (
    MachineDriver,
    MachineInfo,
    MachineMetrics,
    MachineRecord,
    SpecValidation,
)
from ccm.cloud.operation import DECLARED
from ccm.cloud.types import InstanceState, Power

_PLAIN = {bool: "True or False", str: "text", int: "a number"}


class InvalidResponse(Exception):
    """The answer is of a wrong kind; the message says what it was and what it should be."""

    def __init__(self, answer: object, place: str, wanted: str) -> None:
        found = reprlib.repr(answer) + (f" as {place}" if place else "")
        super().__init__(f"{found}, not {wanted}")


def verify(method: Callable[..., Any], answer: Any) -> None:
    """Raise where an answer is not what a method of an interface promises.

    Raises:
        Internal: it is not, and the message says how.
    """
    promised = _promised(method)
    try:
        if promised is not NoneType:  # one that promises None may answer anything
            _check(promised, answer, "")
        if method is MachineDriver.create_machine:
            _identified(answer)
    except InvalidResponse as wrong:
        raise Internal(f"{method.__name__} answered {wrong}") from None


@functools.cache
def _promised(method: Callable[..., Any]) -> Any:
    return get_type_hints(method)["return"]


@functools.cache
def _form(kind: Any) -> tuple[bool, Any, Any, Sequence[Any], Sequence[tuple[str, Any, bool]]]:
    """Whether a type hint allows None, and else the type, its origin, arguments and fields.

    A field has its name, its hint, and whether that is a plain type.
    """
    inner, origin = get_args(kind), get_origin(kind)
    if origin in (Union, UnionType):
        (kind,) = (one for one in inner if one is not NoneType)
        return (True, *_form(kind)[1:])
    if origin is not None and origin not in (Sequence, Mapping, Literal):
        raise TypeError(f"no rule for answers of {origin}")
    is_record = not origin and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))
    hints = get_type_hints(kind) if is_record else {}
    fields = [(name, hint, hint in _PLAIN) for name, hint in hints.items()]
    return False, kind, origin, inner, fields


def _check(hint: Any, answer: Any, place: str) -> None:
    """Raise InvalidResponse for an answer, found in the place of that name, of another kind."""
    is_optional, kind, origin, inner, fields = _form(hint)
    if is_optional and answer is None:
        return
    if origin is None:
        if not isinstance(answer, kind):
            raise InvalidResponse(answer, place, _said(kind))
        if fields:
            _check_record(kind, answer, fields)
    elif origin is Sequence:
        # The usual types first: asking an abstract one costs ten times as much.
        if not isinstance(answer, list | tuple | Sequence) or isinstance(answer, str | bytes):
            raise InvalidResponse(answer, place, f"a sequence of {inner[0].__name__}")
        for one in answer:
            _check(inner[0], one, place)
    elif origin is Mapping:
        if not isinstance(answer, dict | Mapping):
            raise InvalidResponse(answer, place, "a mapping")
        for name, content in answer.items():
            _check(inner[0], name, place)
            _check(inner[1], content, f"{place}[{name!r}]")
    elif answer not in inner:
        raise InvalidResponse(answer, place, " or ".join(map(repr, inner)))


def _check_record(kind: type, answer: Any, fields: Sequence[tuple[str, Any, bool]]) -> None:
    for name, hint, is_plain in fields:
        value = getattr(answer, name)
        if not (is_plain and isinstance(value, hint)):
            _check(hint, value, name)
    # The one field whose absence means something only beside another one.
    if kind is InstanceState and answer.exists and answer.power is None:
        raise InvalidResponse(answer.power, "power", _said(Power))
    if kind is MachineRecord:
        _identified(answer.info)


def _identified(info: MachineInfo) -> None:
    # Stored, an empty one would read as "no VM yet": another would be made.
    if not info.provider_id:
        raise InvalidResponse(info.provider_id, "provider_id", "the ID of a VM")


def _said(kind: type) -> str:
    name = kind.__name__
    return _PLAIN.get(kind) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


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
