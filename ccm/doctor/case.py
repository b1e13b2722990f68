"""The state of one examination: facts that checks share, and the findings of the checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from ccm.app.options import Options
from ccm.cloud.interface import Cloud
from ccm.cloud.registry import Opener
from ccm.cloud.types import InstanceListing
from ccm.doctor import CHECK_LIMIT_S
from ccm.kube.client import Client
from ccm.kube.config import SERVICE_ACCOUNT, ClusterConfig
from ccm.kube.resources import NODES
from ccm.model import Node
from ccm.model.meta import Wire

PROGRAM = "ccm-doctor"
"""Program name in the user agent."""

SHOWN = 5
"""Maximum number of names in a message; further names are only counted."""


class Severity(Enum):
    """Severity of a finding.

    WARN: the daemon works, but an operator should look at it. FAIL: the daemon, or a part of it,
    cannot work. SKIP: the check did not run, because a dependency is missing.
    """

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFinding:
    """Result of one check.

    Attributes:
        severity: severity.
        message: one line about the result.
        details: further lines.
        advice: what to do next, a line each; empty = nothing.
        cause: the check whose finding prevents this check; empty = none.
        prevented: the checks that this finding prevents.
    """

    severity: Severity
    message: str
    details: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    cause: str = ""
    prevented: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether dependent checks can run."""
        return self.severity in (Severity.OK, Severity.WARN)

    def __str__(self) -> str:
        return "; ".join((self.message, *self.details, *self.advice))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A finding with the name of its check and its duration in seconds."""

    check: str
    finding: CheckFinding
    seconds: float = 0.0


def ok(message: str, *details: str) -> CheckFinding:
    return CheckFinding(severity=Severity.OK, message=message, details=details)


def warn(message: str, *advice: str, details: Sequence[str] = ()) -> CheckFinding:
    return CheckFinding(
        severity=Severity.WARN, message=message, details=tuple(details), advice=advice
    )


def fail(message: str, *advice: str, details: Sequence[str] = ()) -> CheckFinding:
    return CheckFinding(
        severity=Severity.FAIL, message=message, details=tuple(details), advice=advice
    )


def skip(message: str, *, cause: str = "") -> CheckFinding:
    return CheckFinding(severity=Severity.SKIP, message=message, cause=cause)


class AuthenticatedUser(Wire, frozen=True, kw_only=True):
    """The user as which the API server authenticates a client."""

    username: str = ""
    groups: list[str] | None = None


@dataclass(slots=True, kw_only=True)
class Case:
    """State of one examination; each check adds facts for later checks.

    Attributes:
        options: the daemon's flags.
        environ: the environment, for kubeconfig and exec plugins.
        impersonated_user: the user whose permissions are checked; empty = our own.
        limit_s: time limit of one check.
        service_account: folder with the token of a Pod.
        reads_only: whether requests other than GET are refused, access reviews included.
        exit_stack: closes the resources that the checks opened.
        findings: findings so far, by check.
        causes: skipped check -> the check whose finding is the cause.
        cluster: configuration of the API server; set by `kubeconfig`.
        client: client of the API server; set by `kubeconfig`.
        user: our user there; set by `identity`.
        skew_s: seconds by which the API server's clock is ahead of ours; set by `clock`.
        lease_holder: holder of the Lease; empty = none; None = unknown; set by `lease`.
        opener: opens the provider; set by `provider`.
        cloud: the open provider; set by `cloud-config`.
        listing: all instances; None if the provider cannot list; set by `cloud`.
        without_instance: name of a node -> why it has no instance; set by `instances`.
        role_clients: role of another cluster -> its client, see `reach.get_field`.
    """

    options: Options
    environ: Mapping[str, str]
    impersonated_user: str = ""
    limit_s: float = CHECK_LIMIT_S
    service_account: Path = SERVICE_ACCOUNT
    reads_only: bool = False
    exit_stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    findings: dict[str, CheckFinding] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    cluster: ClusterConfig = field(init=False)
    client: Client = field(init=False)
    user: AuthenticatedUser = field(default_factory=AuthenticatedUser)
    skew_s: float | None = None
    lease_holder: str | None = None
    opener: Opener = field(init=False)
    cloud: Cloud = field(init=False)
    listing: InstanceListing | None = None
    without_instance: dict[str, str] = field(default_factory=dict)
    role_clients: dict[str, Client] = field(default_factory=dict)
    _nodes: Sequence[Node] | None = None

    async def nodes(self) -> Sequence[Node]:
        """Return all nodes, read once. Raises KubeError."""
        if self._nodes is None:
            pages = self.client.resource(NODES).pages()
            nodes = [node async for page in pages for node in page.items]
            self._nodes = sorted(nodes, key=lambda node: node.name)
        return self._nodes

    def is_usable(self, check: str) -> bool:
        """Return whether a check ran and dependent checks can run."""
        finding = self.findings.get(check)
        return finding is not None and finding.is_usable


# --- partially decoded objects ------------------------------------------------------------------


async def read(client: Client, path: str, **query: str) -> Any:
    """Return the decoded object or list at a path. Raises KubeError."""
    answer = await client.raw("GET", path, query=query or None)
    return msgspec.json.decode(answer, type=dict[str, Any])


async def items(client: Client, path: str, **query: str) -> Sequence[Any]:
    """Return the decoded items of the list at a path. Raises KubeError."""
    return get_field(await read(client, path, **query), "items") or ()


def get_field(obj: Any, path: str) -> Any:
    """Return the field of a decoded object at a dotted path; None if it is missing."""
    for name in path.split("."):
        obj = obj.get(name) if isinstance(obj, dict) else None
    return obj


def get_text_field(obj: Any, path: str) -> str:
    """Return a text field; empty if it is missing."""
    return get_field(obj, path) or ""


# --- findings as text ---------------------------------------------------------------------------


def failed(results: Sequence[CheckResult]) -> bool:
    return any(result.finding.severity is Severity.FAIL for result in results)


def text(result: CheckResult) -> Iterator[str]:
    """Yield the lines of a result; nothing if another finding is the cause."""
    finding = result.finding
    if finding.cause:
        return
    yield f"{finding.severity.value:<4}  {result.check}: {finding.message}"
    yield from (f"      {line}" for line in finding.details)
    yield from (f"      next: {line}" for line in finding.advice)
    if finding.prevented:
        yield f"      skipped as a result: {', '.join(finding.prevented)}"


def summary(results: Sequence[CheckResult]) -> str:
    """Return one line about all results."""
    counts = Counter(result.finding.severity for result in results)
    parts = [f"{counts[Severity.OK]} ok"]
    for verdict, one, more in (
        (Severity.WARN, "warning", "warnings"),
        (Severity.FAIL, "failure", "failures"),
        (Severity.SKIP, "skipped", "skipped"),
    ):
        if counts[verdict]:
            parts.append(count(counts[verdict], one, more))
    return f"{count(len(results), 'check')}: {', '.join(parts)}"


def document(results: Sequence[CheckResult]) -> Mapping[str, object]:
    """Return all results for the JSON output."""
    return {
        "healthy": not failed(results),
        "checks": [
            {
                "check": result.check,
                "verdict": result.finding.severity.value,
                "found": result.finding.message,
                "details": list(result.finding.details),
                "advice": list(result.finding.advice),
                "cause": result.finding.cause,
                "seconds": round(result.seconds, 3),
            }
            for result in results
        ],
    }


def some(names: Sequence[str]) -> str:
    """Return the names, or the first few and the number of others."""
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} more"


def count(number: int, one: str, more: str = "") -> str:
    """Return a number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def which(number: int, whole: int, noun: str, one: str, more: str) -> str:
    """Return a part of a whole with its verb: `1 of 3 nodes has`, `2 of 3 nodes have`."""
    return f"{number} of {count(whole, noun)} {one if number == 1 else more}"
