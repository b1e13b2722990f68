"""Checks of a provider's methods and responses against the interfaces. No I/O.

Python does not enforce type hints, so this module checks every response, field by field. A
response of the wrong type is an error of the provider. Without the check, the None of a forgotten
`return` could mean "gone" or "no addresses", or become a provider ID.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from ccm.base.tasks import in_slices
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
    LoadBalancerTransfer,
    Routes,
    Zones,
)
from ccm.cloud.journal import JournalParts, MachineAccounts
from ccm.cloud.machines import (
    CreationCheck,
    MachineDriver,
    MachineInfo,
    MachineMetrics,
    MachineMetricsUpdate,
    MachineRecord,
    SpecValidation,
    UIDMigration,
)
from ccm.cloud.operation import DECLARATIONS
from ccm.cloud.types import InstanceState, Power

_PLAIN = {bool: "True or False", str: "text", int: "a number"}


class InvalidResponse(Exception):
    """Wrong type of a response; the message contains the value and the expected type."""

    def __init__(self, response: object, place: str, expected: str) -> None:
        shown = reprlib.repr(response) + (f" as {place}" if place else "")
        super().__init__(f"{shown}, not {expected}")


_Listing = tuple[Any, Sequence[Any], str]
"""Type of the items, the items, and the field name."""


async def verify(method: Callable[..., Any], response: Any) -> None:
    """Check a response against the return type of its interface method.

    Raises:
        Internal: the type is wrong; the message contains the value and the expected type.
    """
    promised, listings = _return_type(method), list[_Listing]()
    with _naming(method):
        if promised is not NoneType:  # a method declared to return None may return anything
            _check(promised, response, "", listings)
        if method is MachineDriver.create_machine:
            _check_provider_id(response)
        for kind, items, place in listings:
            async for item in in_slices(items):
                _check(kind, item, place)


def verify_computed(method: Callable[..., Any], response: Any) -> None:
    """Check that a synchronous method that promises text, such as a name, has returned text.

    Other responses, such as labels of metrics, are stored nowhere, and are converted where used.

    Raises:
        Internal: as `verify`.
    """
    promised = _return_type(method)
    if promised is str:
        with _naming(method):
            _check(promised, response, "")


@contextmanager
def _naming(method: Callable[..., Any]) -> Iterator[None]:
    """Raise Internal, with the method's name, for InvalidResponse in the block."""
    try:
        yield
    except InvalidResponse as wrong:
        raise Internal(f"{method.__name__} returned {wrong}") from None


@functools.cache
def _return_type(method: Callable[..., Any]) -> Any:
    return get_type_hints(method)["return"]


@functools.cache
def _analyze_hint(
    kind: Any,
) -> tuple[bool, Any, Any, Sequence[Any], Sequence[tuple[str, Any, bool]]]:
    """Return whether a type hint allows None, then the type, its origin, arguments and fields.

    Each field is a tuple of name, type hint and whether the hint is a plain type (`_PLAIN`).
    """
    inner, origin = get_args(kind), get_origin(kind)
    if origin in (Union, UnionType):
        (kind,) = (argument for argument in inner if argument is not NoneType)
        return (True, *_analyze_hint(kind)[1:])
    if origin is not None and origin not in (Sequence, Mapping, Literal):
        raise TypeError(f"no rule for return type {origin}")
    is_record = not origin and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct))
    hints = get_type_hints(kind) if is_record else {}
    fields = [(name, hint, hint in _PLAIN) for name, hint in hints.items()]
    return False, kind, origin, inner, fields


def _check(
    hint: Any,
    response: Any,
    place: str,
    listings: list[_Listing] | None = None,
) -> None:
    """Raise InvalidResponse if a value does not fit its type hint; `place` is its field name.

    If `listings` is not None, sequences are appended to it, and their items are not checked.
    """
    is_optional, kind, origin, inner, fields = _analyze_hint(hint)
    if is_optional and response is None:
        return
    if origin is None:
        if not isinstance(response, kind):
            raise InvalidResponse(response, place, _describe_type(kind))
        if fields:
            _check_record(kind, response, fields, listings)
    elif origin is Sequence:
        # The common types first: isinstance with an abstract class is ten times as slow.
        if not isinstance(response, list | tuple | Sequence) or isinstance(response, str | bytes):
            raise InvalidResponse(response, place, f"a sequence of {inner[0].__name__}")
        _check_items((inner[0], response, place), listings)
    elif origin is Mapping:
        if not isinstance(response, dict | Mapping):
            raise InvalidResponse(response, place, "a mapping")
        for name, content in response.items():
            _check(inner[0], name, place)
            _check(inner[1], content, f"{place}[{name!r}]")
    elif response not in inner:
        raise InvalidResponse(response, place, " or ".join(map(repr, inner)))


def _check_items(listing: _Listing, listings: list[_Listing] | None) -> None:
    if listings is not None:
        listings.append(listing)
        return
    hint, items, place = listing
    for item in items:
        _check(hint, item, place)


def _check_record(
    kind: type,
    response: Any,
    fields: Sequence[tuple[str, Any, bool]],
    listings: list[_Listing] | None,
) -> None:
    for name, hint, is_plain in fields:
        value = getattr(response, name)
        if not (is_plain and isinstance(value, hint)):
            _check(hint, value, name, listings)
    # `power` may be None only where `exists` is False; no type hint expresses that.
    if kind is InstanceState and response.exists and response.power is None:
        raise InvalidResponse(response.power, "power", _describe_type(Power))
    if kind is MachineRecord:
        _check_provider_id(response.info)


def _check_provider_id(info: MachineInfo) -> None:
    # An empty provider ID would be stored, mean "no VM yet" and cause a second VM.
    if not info.provider_id:
        raise InvalidResponse(info.provider_id, "provider_id", "the ID of a VM")


def _describe_type(kind: type) -> str:
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
    LoadBalancerTransfer: ("load_balancer", "transfer of load balancers"),
    Routes: ("routes", "routes"),
    MachineDriver: ("machines", "machines"),
    SpecValidation: ("machines", "a check of provider specs"),
    MachineMetrics: ("machines", "metric labels of machines"),
    MachineMetricsUpdate: ("machines", "metrics of machines"),
    UIDMigration: ("machines", "migration of UIDs"),
    CreationCheck: ("machines", "a check before creations"),
    JournalParts: ("machines", "parts of machines"),
    MachineAccounts: ("machines", "accounts of machines"),
}
"""Interface -> the field of `Cloud` that implements it, and the interface's name in messages."""

_OPTIONAL_INTERFACES = (
    InstanceStates,
    LoadBalancerDigests,
    LoadBalancerRemoval,
    LoadBalancerTransfer,
    SpecValidation,
    MachineMetrics,
    MachineMetricsUpdate,
    UIDMigration,
    CreationCheck,
    JournalParts,
    MachineAccounts,
)
"""Optional interfaces: an object in a field of `Cloud` may implement these in addition."""

_INTERFACE_OF: Mapping[Callable[..., Any], type] = {
    method: face
    for face in CAPABILITIES
    for _, method in inspect.getmembers(face, inspect.isfunction)
}

_NAMES = {method.__name__ for method in _INTERFACE_OF}


def carries_credentials(method: Callable[..., Any]) -> bool:
    """Return whether a method belongs to the machine driver, whose calls carry credentials.

    Other calls use the provider's own credentials.
    """
    return CAPABILITIES[_INTERFACE_OF[method]][0] == "machines"


def implementation_of(cloud: Cloud, interface: type) -> object | None:
    """Return the provider's object that implements an interface; None = not implemented."""
    implementation: object | None = getattr(cloud, CAPABILITIES[interface][0])
    return (
        None
        if interface in _OPTIONAL_INTERFACES and not isinstance(implementation, interface)
        else implementation
    )


def bind_method(cloud: Cloud, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the provider's implementation of an interface method. Raises Unimplemented."""
    face = _INTERFACE_OF[method]
    implementation = implementation_of(cloud, face)
    if implementation is None:
        raise Unimplemented(f"this cloud does not offer {CAPABILITIES[face][1]}")
    attribute: Callable[..., Any] = getattr(implementation, method.__name__)
    return attribute


def find_interface_errors(cloud: Cloud) -> Sequence[str]:
    """Return a message for each interface method that is missing or has a wrong signature.

    An optional interface is checked only if the object has at least one of its methods. The account
    is checked, too, since the journal stores it.
    """
    faults = [fault for face in CAPABILITIES for fault in _interface_errors(cloud, face)]
    account: object = cloud.account
    if not isinstance(account, str):
        faults.append(f"account: it is {account!r}; use text")
    return faults


def _interface_errors(cloud: Cloud, interface: type) -> Iterator[str]:
    field = CAPABILITIES[interface][0]
    implementation: object | None = getattr(cloud, field)
    methods = [
        method
        for method in _INTERFACE_OF
        if _INTERFACE_OF[method] is interface and _is_called(method)
    ]
    is_optional = interface in _OPTIONAL_INTERFACES
    if is_optional and not any(hasattr(implementation, method.__name__) for method in methods):
        return
    for method in methods if implementation is not None else ():
        if fault := _method_error(implementation, method):
            yield f"{field}: {type(implementation).__name__}.{fault}"


def _is_called(method: Callable[..., Any]) -> bool:
    """Return whether the daemon calls a method: a declared operation or a public pure function."""
    name = method.__name__
    return name in DECLARATIONS or not (name.startswith("_") or inspect.iscoroutinefunction(method))


def _method_error(implementation: object, method: Callable[..., Any]) -> str:
    name, implemented = method.__name__, getattr(implementation, method.__name__, None)
    if not callable(implemented):
        others = {
            public_name for public_name in dir(implementation) if not public_name.startswith("_")
        }
        near = difflib.get_close_matches(name, others - _NAMES, n=1)
        hint = f"; is {near[0]} misspelt?" if near else "; implement it"
        return f"{name} is missing{hint}"
    if inspect.iscoroutinefunction(method):
        if not _is_async(implemented):
            return f"{name} is not async; use `async def`"
    elif inspect.iscoroutinefunction(implemented):
        return f"{name} is async; use `def`"
    parameters = [*inspect.signature(method).parameters][1:]
    try:
        inspect.signature(implemented).bind(*parameters)
    except TypeError:
        return f"{name} has a wrong signature; expected parameters ({', '.join(parameters)})"
    except ValueError:  # functions written in C may have no signature
        pass
    return ""


def _is_async(function: Any) -> bool:
    """Return whether a call is awaitable, including decorated functions and callable objects."""
    forms = (function, inspect.unwrap(function), type(function).__call__)
    return any(inspect.iscoroutinefunction(form) for form in forms)
