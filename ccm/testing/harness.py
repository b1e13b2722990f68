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
    "no_cluster_marks": "balancers and routes do not say whose they are: one cluster a project",
    "routes_name_nodes": "a route goes on naming its node when the instance is gone",
    "names_are_marks": "a name of a load balancer holds its Service's UID, and marks it as its own",
    "no_source_ranges": "load balancers let everybody in, whatever `loadBalancerSourceRanges` says",
    "free_writes": "a write that changes nothing costs nothing, so that ensure may repeat it",
    "no_machine_marks": "VMs do not say whose they are: none is ours but by its provider ID",
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
        """Make a running instance with at least one address, under a name of its own."""

    async def stop(self, made: Made) -> None:
        """Switch an instance off."""

    async def start(self, made: Made) -> None:
        """Switch a stopped instance on."""

    async def delete(self, made: Made) -> None:
        """Delete an instance for good."""

    async def transition(self, made: Made) -> None:
        """Leave an instance in a state on the way, such as `stopping`."""

    async def surprise(self, made: Made) -> None:
        """Make the cloud speak of the future.

        Every later response has undocumented fields, and the instance has an unknown state.
        """

    async def fail(self, how: Any) -> None:
        """Make every cloud request fail from now on, as this value of `faults` says."""

    async def heal(self) -> None:
        """End the fault; let hanging requests go."""

    async def rotate(self) -> None:
        """Refuse the old credentials from now on, and lay new ones where `open` finds them."""

    async def shrink_pages(self, size: int) -> None:
        """Answer every listing with so many items a page from now on, whatever is asked for."""

    def is_task_of_fake(self, task: asyncio.Task[Any]) -> bool:
        """Return whether your fake started this task during a call to the provider.

        Needed only for a fake that the provider calls in Python. The contract recognises the tasks
        of a fake behind a socket itself.
        """
        return False

    async def requests(self) -> int:
        """How many requests the cloud has counted so far, each as it comes in."""

    # --- load balancers and routes ----------------------------------------------------------

    async def writes(self) -> int:
        """How many requests that change something the cloud has counted so far."""

    async def lose_answer(self, number: int) -> None:
        """Let the changing request of that number from now (1 = the next) take effect unanswered.

        One request only. `heal` disarms it.
        """

    async def load_balancers(self) -> Sequence[HeldBalancer]:
        """Every load balancer of the cloud, whosever it is, half-made ones included."""

    async def slow_load_balancers(self, *, slow: bool) -> None:
        """Let new load balancers take long from now on, or finish all of them."""

    async def break_load_balancer(self, name: str, reason: str) -> None:
        """Put a load balancer into a state of failure, with a reason for people."""

    async def tamper(self, name: str) -> None:
        """Change a load balancer behind the daemon's back, for instance take out a member."""

    async def protect(self, name: str, *, protected: bool) -> None:
        """Make the cloud refuse to delete a load balancer, or stop refusing."""

    async def unmarked_load_balancer(self, name: str) -> None:
        """Make a load balancer of that name without marks of a Service or cluster."""

    async def routes(self) -> Sequence[str]:
        """Return the ranges of all routes in the cloud, of all owners."""

    async def foreign_route(self, cidr: str) -> None:
        """Make a route of another owner."""

    # --- machines ---------------------------------------------------------------------------

    def open_machines(self) -> AbstractAsyncContextManager[Cloud]:
        """The provider for its machine driver alone, without a cloud config; not entered yet."""

    def machine_credentials(self) -> Mapping[str, bytes]:
        """The data of a Secret that opens the cloud now; `rotate` changes it."""

    def machine_spec(self) -> Mapping[str, Any]:
        """A provider spec of a VM that can be had."""

    def bad_machine_spec(self) -> Mapping[str, Any]:
        """A provider spec that makes no sense."""

    async def vms(self) -> Sequence[HeldVM]:
        """Every VM in the cloud, whosever it is, without those that are gone."""

    async def beside_vms(self) -> Sequence[str]:
        """Return all existing resources that were created with VMs: volumes, keys, ports."""
        return ()

    async def foreign_vm(self, name: str, identity: Identity | None) -> HeldVM:
        """A VM that the driver did not make, with the marks of an identity, or without any.

        A VM without marks is in no pool, unless the cloud identifies pools in another way.
        """

    async def slow_vms(self, *, slow: bool) -> None:
        """Let VMs take minutes to start and to go from now on, or no time."""


def _skipping(name: str, hook: Callable[..., Any]) -> Callable[..., NoReturn]:
    duty = str(hook.__doc__).partition(".")[0]

    @functools.wraps(hook)
    def absent(*_: Any, **__: Any) -> NoReturn:
        pytest.skip(f"this harness cannot do it; override Harness.{name}: {duty}")

    return absent


for _name, _hook in list(vars(Harness).items()):
    if inspect.isfunction(_hook) and _name not in ("open", "is_task_of_fake", "beside_vms"):
        setattr(Harness, _name, _skipping(_name, _hook))
