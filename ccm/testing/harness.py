"""Hooks through which the provider contract controls a cloud; provider authors override them.

Every hook but `open` is optional. A case that needs a missing hook is skipped with a message that
names the hook. A hook returns when its effect is visible through the cloud's API.
"""

# ruff: noqa: ARG002 - only overrides use the arguments of hooks
# mypy: disable-error-code="empty-body"

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pytest

from ccm.cloud import errors
from ccm.cloud.errors import CloudError
from ccm.cloud.interface import Cloud
from ccm.cloud.machines import Identity
from ccm.model import NodeAddress

_UNREADABLE = (errors.Unavailable, errors.Internal, errors.Unknown, errors.DataLoss)

PROMISED: Mapping[str, tuple[type[CloudError], ...]] = {
    "outage": (errors.Unavailable,),
    "drop": (errors.Unavailable, errors.Aborted),
    "denied": (errors.Unauthenticated, errors.PermissionDenied),
    "rate_limited": (errors.RetryAfter, errors.ResourceExhausted, errors.Unavailable),
    "quota": (errors.ResourceExhausted,),
    "garbage": _UNREADABLE,
    "empty": _UNREADABLE,
}
"""Fault -> error classes that a provider may raise during the fault.

outage: status 5xx or no connection. drop: the connection closes before the answer. denied: the
cloud rejects the credentials. rate_limited: the cloud asks for a later retry. quota: a quota is
exhausted. garbage: an answer that cannot be parsed. empty: an answer without a body.
"""

HANG = "hang"
"""Fault of a cloud that accepts requests and never answers."""


OPT_OUTS: Mapping[str, str] = {
    "no_cluster_marks": "load balancers and routes have no cluster mark: one cluster per project",
    "routes_name_nodes": "a route still names its node after the instance was deleted",
    "names_are_marks": "a load balancer's name contains its Service's UID and marks the owner",
    "no_source_ranges": "load balancers ignore `loadBalancerSourceRanges`",
    "free_writes": "a write without a change is free, so that ensure may repeat it",
    "no_machine_marks": "VMs have no owner mark: only the provider ID identifies ours",
}
"""Permitted deviations from the contract, with their meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An instance that the harness created, and the expected values of the provider.

    Attributes:
        name: name of its node.
        provider_id: expected provider ID.
        instance_type: expected type; empty = any that is not empty.
        zone: expected zone; empty = not checked.
        region: expected region; empty = not checked.
        addresses: expected addresses in order; None = any.
        additional_labels: labels that the metadata must have; others are allowed.
    """

    name: str
    provider_id: str
    instance_type: str = ""
    zone: str = ""
    region: str = ""
    addresses: Sequence[NodeAddress] | None = None
    additional_labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBalancer:
    """A load balancer in the cloud, in the cluster's terms.

    Attributes:
        name: its name in the cloud.
        ports: (protocol, port, node port) of each listener.
        members: names of the nodes that get traffic.
        source_ranges: CIDRs with access; empty = all; None = the harness cannot tell.
    """

    name: str
    ports: frozenset[tuple[str, int, int]]
    members: frozenset[str]
    source_ranges: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVM:
    """A VM in the cloud, whatever its owner."""

    name: str
    provider_id: str


class Harness:
    """Controls one cloud: a fake, a simulator, or a real account.

    Attributes:
        faults: names out of `PROMISED` and `hang` -> argument for `fail`.
        opt_outs: names out of `OPT_OUTS` -> reason, for the report. Declare a deviation here
            instead of overriding a case.
        patience_s: maximum duration of one call during a fault; must exceed the time of the
            provider's own retries.
    """

    faults: Mapping[str, Any] = {}
    opt_outs: Mapping[str, str] = {}
    patience_s: float = 10.0

    def open(self) -> AbstractAsyncContextManager[Cloud]:
        """Return the provider, not entered yet; called anew for each opening."""
        raise NotImplementedError("override Harness.open: return open_cloud(Context(config=...))")

    async def create(self) -> Made:
        """Create a running instance with a unique name and at least one address."""

    async def stop(self, made: Made) -> None:
        """Switch an instance off."""

    async def start(self, made: Made) -> None:
        """Switch a stopped instance on."""

    async def delete(self, made: Made) -> None:
        """Delete an instance for good."""

    async def transition(self, made: Made) -> None:
        """Put an instance into a transitional state, such as `stopping`."""

    async def surprise(self, made: Made) -> None:
        """Add unknown fields and an unknown instance state to every later response.

        The state is that of the given instance.
        """

    async def fail(self, how: Any) -> None:
        """Make every cloud request fail from now on, as this value of `faults` says."""

    async def heal(self) -> None:
        """End the fault; release hanging requests."""

    async def rotate(self) -> None:
        """Revoke the old credentials, and store new ones where `open` finds them."""

    async def shrink_pages(self, size: int) -> None:
        """Limit the pages of every later listing to this number of items."""

    def is_task_of_fake(self, task: asyncio.Task[Any]) -> bool:
        """Return whether your fake started this task during a call to the provider.

        Needed only for a fake that the provider calls in Python. The contract recognises the tasks
        of a fake behind a socket itself.
        """
        return False

    async def requests(self) -> int:
        """Return the number of requests that the cloud has received."""

    # --- load balancers and routes ----------------------------------------------------------

    async def writes(self) -> int:
        """Return the number of write requests that the cloud has received."""

    async def lose_answer(self, number: int) -> None:
        """Execute the write request of this number (1 = the next), but drop its answer.

        One request only. `heal` disarms it.
        """

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        """Return all load balancers of the cloud, of all owners, also incomplete ones."""

    async def slow_load_balancers(self, *, slow: bool) -> None:
        """Make the creation of load balancers slow, or complete all of them."""

    async def break_load_balancer(self, name: str, reason: str) -> None:
        """Put a load balancer into a failed state with a reason."""

    async def tamper(self, name: str) -> None:
        """Change a load balancer outside the provider, for example remove a member."""

    async def protect(self, name: str, *, protected: bool) -> None:
        """Make the cloud refuse to delete a load balancer, or stop refusing."""

    async def unmarked_load_balancer(self, name: str) -> None:
        """Create a load balancer of this name without marks of a Service or cluster."""

    async def routes(self) -> Sequence[str]:
        """Return the ranges of all routes in the cloud, of all owners."""

    async def foreign_route(self, cidr: str) -> None:
        """Create a route of another owner."""

    # --- machines ---------------------------------------------------------------------------

    def open_machines(self) -> AbstractAsyncContextManager[Cloud]:
        """Return the provider for its machine driver only, without a cloud config; not entered."""

    def machine_credentials(self) -> Mapping[str, bytes]:
        """Return the data of a Secret with valid credentials; `rotate` changes it."""

    def machine_spec(self) -> Mapping[str, Any]:
        """Return a valid provider spec."""

    def bad_machine_spec(self) -> Mapping[str, Any]:
        """Return an invalid provider spec."""

    async def vms(self) -> Sequence[HeldVM]:
        """Return all existing VMs in the cloud, of all owners."""

    async def beside_vms(self) -> Sequence[str]:
        """Return all existing resources that were created with VMs: volumes, keys, ports."""
        return ()

    async def foreign_vm(self, name: str, identity: Identity | None) -> HeldVM:
        """Create a VM outside the driver, with the marks of an identity or without marks.

        A VM without marks is in no pool, unless the cloud identifies pools in another way.
        """

    async def slow_vms(self, *, slow: bool) -> None:
        """Make later starts and deletions of VMs take minutes, or no time."""


def _skipping(name: str, hook: Callable[..., Any]) -> Callable[..., NoReturn]:
    duty = str(hook.__doc__).partition(".")[0]

    @functools.wraps(hook)
    def absent(*_: Any, **__: Any) -> NoReturn:
        pytest.skip(f"hook missing; override Harness.{name}: {duty}")

    return absent


for _name, _hook in list(vars(Harness).items()):
    if inspect.isfunction(_hook) and _name not in ("open", "is_task_of_fake", "beside_vms"):
        setattr(Harness, _name, _skipping(_name, _hook))
