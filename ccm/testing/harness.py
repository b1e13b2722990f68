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
    "protected_stay": "a Service is deleted although its load balancer is protected and stays",
    "tcp_only": "load balancers leave out ports that are not TCP",
    "free_writes": "a write without a change is free, so that ensure may repeat it",
    "no_machine_marks": "VMs have no owner mark; only the provider ID tells which VM is ours",
    "found_by_uid": "the only owner mark of a VM is its machine's UID; provider IDs are not read",
}
"""Permitted deviations from the contract, with their meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An instance that the harness created, and the values that the provider must return for it.

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
    """A load balancer that exists in the cloud, described in Kubernetes terms.

    Attributes:
        name: name of the load balancer in the cloud.
        ports: (protocol, port, node port) of each listener.
        members: names of the nodes that get traffic.
        source_ranges: CIDRs that may connect; empty = all; None = the harness cannot tell.
    """

    name: str
    ports: frozenset[tuple[str, int, int]]
    members: frozenset[str]
    source_ranges: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldVM:
    """A VM that exists in the cloud, of any owner."""

    name: str
    provider_id: str


class Harness:
    """Controls one cloud: a fake, a simulator, or a real account.

    Attributes:
        faults: name of a fault (a key of `PROMISED`, or `hang`) -> argument for `fail`. The cases
            of other faults are skipped.
        opt_outs: key of `OPT_OUTS` -> reason, which the test report shows. Declare a deviation
            here instead of overriding a case.
        patience_s: maximum duration of one call during a fault, in seconds. It must exceed the
            time that the provider's own retries take.
    """

    faults: Mapping[str, Any] = {}
    opt_outs: Mapping[str, str] = {}
    patience_s: float = 10.0

    def open(self) -> AbstractAsyncContextManager[Cloud]:
        """Return a new context manager of the provider, not entered; called for each opening."""
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
        """Add unknown fields to every later response, and show the instance in an unknown state."""

    async def fail(self, how: Any) -> None:
        """Make every later cloud request fail; `how` is the value of the fault in `faults`."""

    async def heal(self) -> None:
        """End the fault; release hanging requests."""

    async def rotate(self) -> None:
        """Revoke the old credentials, and store new ones where `open` finds them."""

    async def shrink_pages(self, size: int) -> None:
        """Limit the pages of every later listing to `size` items."""

    def is_task_of_fake(self, task: asyncio.Task[Any]) -> bool:
        """Return whether your fake started this task during a call to the provider.

        Needed only for a fake that the provider calls as a Python object. Tasks of a fake behind a
        socket never count as tasks of the provider.
        """
        return False

    async def requests(self) -> int:
        """Return the number of requests that the cloud has received."""

    # --- load balancers and routes ----------------------------------------------------------

    async def writes(self) -> int:
        """Return the number of write requests that the cloud has received."""

    async def lose_answer(self, number: int) -> None:
        """Execute the write request of this number (1 = the next), but drop its answer.

        Other requests are not affected. `heal` cancels this for a request that did not come yet.
        """

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        """Return all load balancers in the cloud, of all owners, including incomplete ones."""

    async def slow_load_balancers(self, *, slow: bool) -> None:
        """Keep new load balancers in creation; with `slow=False`, complete all of them."""

    async def break_load_balancer(self, name: str, reason: str) -> None:
        """Put a load balancer into a failed state with a reason."""

    async def tamper(self, name: str) -> None:
        """Change a load balancer outside the provider, for example remove a member."""

    async def protect(self, name: str, *, protected: bool) -> None:
        """Make the cloud refuse to delete a load balancer, or allow its deletion again."""

    async def unmarked_load_balancer(self, name: str) -> None:
        """Create a load balancer of this name without marks (labels or tags) of an owner."""

    async def routes(self) -> Sequence[str]:
        """Return the destination CIDRs of all routes in the cloud, of all owners."""

    async def foreign_route(self, cidr: str) -> None:
        """Create a route to a CIDR for another owner than this cluster."""

    # --- machines ---------------------------------------------------------------------------

    def open_machines(self) -> AbstractAsyncContextManager[Cloud]:
        """Return a new context manager of the provider without a cloud config, not entered.

        The cases use only its machine driver.
        """

    def machine_credentials(self) -> Mapping[str, bytes]:
        """Return the data of a Secret with valid credentials; `rotate` changes it."""

    def machine_spec(self) -> Mapping[str, Any]:
        """Return a valid provider spec."""

    def bad_machine_spec(self) -> Mapping[str, Any]:
        """Return an invalid provider spec."""

    async def vms(self) -> Sequence[HeldVM]:
        """Return all existing VMs in the cloud, of all owners."""

    async def beside_vms(self) -> Sequence[str]:
        """Return IDs of all existing resources that were created with VMs: volumes, keys, ports."""
        return ()

    async def foreign_vm(self, name: str, identity: Identity | None) -> HeldVM:
        """Create a VM outside the driver, with the marks (labels or tags) of an identity.

        Without an identity, the VM has no marks, and is in no pool unless the cloud identifies
        pools in another way.
        """

    async def slow_vms(self, *, slow: bool) -> None:
        """Make later starts and deletions of VMs take minutes; with `slow=False`, no time."""


def _skipping(name: str, hook: Callable[..., Any]) -> Callable[..., NoReturn]:
    duty = str(hook.__doc__).partition(".")[0]

    @functools.wraps(hook)
    def absent(*_: Any, **__: Any) -> NoReturn:
        pytest.skip(f"hook missing; override Harness.{name}: {duty}")

    return absent


for _name, _hook in list(vars(Harness).items()):
    if inspect.isfunction(_hook) and _name not in ("open", "is_task_of_fake", "beside_vms"):
        setattr(Harness, _name, _skipping(_name, _hook))
