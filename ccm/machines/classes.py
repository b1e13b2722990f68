"""Classes of machines with their credentials. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ccm.cloud.machines import SPEC_USER_DATA, Credentials


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassView:
    """What VMs alike are to be like.

    Attributes:
        name: of the class; the pool of its VMs.
        provider_spec: for the driver.
        credentials: for the driver.
        user_data: what VMs are booted with, with its placeholders.
        faults: why no VM can be made of it now; said in the status of its machines.
        lacking: those of them for which the cloud cannot be asked about a VM either.
        origin: differs when its VMs may be in another place: other credentials, other region.
        is_held: whether our finalizer keeps it.
        imports: provider IDs of VMs that may be its machines' whatever marks they have.
        extra_capacity: resources that are added to the capacity of its nodes.
        place: type and zone of its VMs, as far as the class says; for metrics.
        version: differs when anything of this does.
    """

    name: str
    provider_spec: Mapping[str, Any]
    credentials: Credentials
    user_data: bytes = field(default=b"", repr=False)
    faults: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    origin: str = ""
    is_held: bool = True
    imports: frozenset[str] = frozenset()
    extra_capacity: Mapping[str, str] = field(default_factory=dict)
    place: tuple[str, str] = ("", "")
    version: tuple[str, ...] = ()

    @property
    def spec_user_data(self) -> bytes:
        """User data that stand in the provider spec, where some drivers look for them first."""
        found = self.provider_spec.get(SPEC_USER_DATA)
        return found.encode() if isinstance(found, str) else b""
