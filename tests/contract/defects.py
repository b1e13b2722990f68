"""Defects of providers, each with the cases of the contract that must notice it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ccm.testing.contract import Harness, MachineContract, ProviderContract
from tests.contract.memory import (
    MachineHarness,
    MemoryHarness,
    MemoryMachines,
    MemoryNetwork,
    NetworkHarness,
)

T = TypeVar("T", bound=type)


class Defect(NamedTuple):
    """How a cloud with the defect is made, the contract it breaks, and the cases that must fail."""

    harness: Callable[[], Harness]
    contract: type[ProviderContract | MachineContract]
    noticed: tuple[str, ...]


DEFECTS: dict[str, Defect] = {}


def noticed_by(*cases: str, harness: Callable[[Any], Harness] | None = None) -> Callable[[T], T]:
    """Marks a provider with a defect. By default, it offers only the new interface."""

    def register(kind: T) -> T:
        new = partial(MemoryHarness, without=("instances_v1", "zones"))
        make = harness or (NetworkHarness if issubclass(kind, MemoryNetwork) else new)
        contract: type[ProviderContract | MachineContract] = ProviderContract
        name = kind.__name__
        if issubclass(kind, MemoryMachines):
            make = harness or MachineHarness
            contract, name = MachineContract, f"Machine{name}"
        assert name not in DEFECTS
        DEFECTS[name] = Defect(partial(make, kind), contract, cases)
        return kind

    return register
