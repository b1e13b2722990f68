"""Classes of errors and stretches of time, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ccm.cloud.errors import POLICY
from ccm.kube import errors as kube

_BY_ITSELF = "nothing, it goes on by itself"

_CLOUD: Mapping[str, tuple[str, str]] = {
    "NotFound": (
        "the cloud does not know it",
        (
            "give the instance the node's name, or the kubelet the instance's by "
            "--hostname-override, and register the node anew; kube-ccm doctor shows instances "
            "without a node"
        ),
    ),
    "AlreadyExists": (
        "something else has its place in the cloud",
        "look in the cloud for what is in its way, and delete or rename it",
    ),
    "InvalidArgument": (
        "the cloud refuses what it asks for",
        (
            "correct the object, its annotations above all (kube-ccm providers NAME lists them); "
            "it is tried again as soon as it changes"
        ),
    ),
    "OutOfRange": (
        "the cloud refuses a value of it",
        "correct the object; it is tried again as soon as it changes",
    ),
    "FailedPrecondition": (
        "something has to be changed first",
        "change what the message names; it is tried again as soon as the object changes",
    ),
    "Unauthenticated": (
        "the cloud refused the credentials",
        (
            "put good credentials into the file that --cloud-config names (the Secret "
            "cloud-config); the daemon reads it again by itself, and tries at once"
        ),
    ),
    "PermissionDenied": (
        "the cloud's credentials may not do that",
        "give the account of the credentials the right that the message names",
    ),
    "ResourceExhausted": (
        "a quota or limit of the cloud is reached",
        "raise the quota, or free what is not needed; it is tried again by itself",
    ),
    "Unavailable": (
        "the cloud cannot be reached, or is in trouble",
        (
            "look at the cloud's state, and whether its API can be reached from the daemon's node; "
            "it is tried again by itself"
        ),
    ),
    "DeadlineExceeded": (
        "the cloud did not answer in time",
        (
            "look at the cloud's state; it is tried again by itself. A limit of another length is "
            "--cloud-call-timeout"
        ),
    ),
    "Aborted": (
        "an earlier call about it has not ended",
        "nothing, unless it lasts: a call that never ends holds it until the daemon is restarted",
    ),
    "RetryAfter": ("the cloud asked to come back later", _BY_ITSELF),
    "Unimplemented": (
        "the provider does not offer that",
        "use a provider that does, or turn the controller off by --controllers",
    ),
    "ImplementedElsewhere": (
        "the provider leaves it to another controller",
        "nothing, if that controller runs",
    ),
    "Uninitialized": ("its VM is not set up yet", _BY_ITSELF),
    "Canceled": ("the call was cancelled on the way", _BY_ITSELF),
}

_API: Mapping[str, tuple[str, str]] = {
    "Forbidden": (
        "the daemon lacks a right at the API server",
        (
            "grant what the message names: apply manifests/rbac.yaml of this version; kube-ccm "
            "doctor --as=system:serviceaccount:kube-system:cloud-controller-manager shows what is "
            "missing"
        ),
    ),
    "Unauthorized": (
        "the API server does not accept the daemon's credentials",
        "give the daemon a token or certificate of this cluster",
    ),
    "Invalid": (
        "the API server refuses what the daemon writes",
        "look at the message: an admission webhook may be in the way, or the provider's data wrong",
    ),
    "Conflict": (
        "somebody else writes it all the time",
        "look who: kubectl get -o yaml --show-managed-fields",
    ),
}

_CLASS = "correct the providerSpec of its MachineClass; it is tried again at once then"

_MACHINES: Mapping[str, str] = {
    "NotFound": (
        "look whether spec.providerID names a VM that is there: while it stands no other is made; "
        "delete the Machine if its VM is gone"
    ),
    "InvalidArgument": _CLASS,
    "OutOfRange": _CLASS,
    "Unauthenticated": (
        "put good credentials into the Secret of its MachineClass; it is tried again at once then"
    ),
    "PermissionDenied": (
        "give the account of the credentials in the Secret of its MachineClass the right that the "
        "message names"
    ),
    "DeadlineExceeded": "look at the cloud's state; it is tried again by itself",
}
"""What to do about machines, where that is something else."""

_OF_THE_API = {name for name, kind in vars(kube).items() if isinstance(kind, type)}
_OF_THE_CLOUD = {kind.__name__ for kind in POLICY} | {"CloudError"}


def cause(kind: str) -> str:
    """What an error of that class means."""
    if kind in _CLOUD:
        return _CLOUD[kind][0]
    if kind in _API:
        return _API[kind][0]
    if kind in _OF_THE_API:
        return "the API server is in trouble"
    if kind in _OF_THE_CLOUD:
        return "the cloud or its provider failed"
    return "the daemon itself failed"


def advice(kind: str, *, is_machine: bool = False) -> str:
    """What to do about it."""
    if is_machine and kind in _MACHINES:
        return _MACHINES[kind]
    if kind in _CLOUD:
        return _CLOUD[kind][1]
    if kind in _API:
        return _API[kind][1]
    if kind in _OF_THE_API:
        return "look at the API server; it is tried again by itself"
    if kind in _OF_THE_CLOUD:
        return "look at the message and at the cloud; it is tried again by itself"
    return "report this with the daemon's log: it is a defect of the daemon or of the provider"


def span(seconds: float) -> str:
    """A stretch of time: `250 ms`, `12 s`, `3 min`, `2 h`."""
    if seconds < 0.95:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def ago(seconds: float) -> str:
    """When something was: `12 s ago`."""
    return f"{span(seconds)} ago" if seconds >= 1 else "just now"
