"""The state of one examination: data that checks share, and the findings of the checks."""

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
"""Program name in the user agent of doctor's requests."""

SHOWN = 5
"""Maximum number of names in a message; further names are only counted."""


class Severity(Enum):
    """Severity of a finding.

    WARN: the daemon works, but the administrator should read the message. FAIL: the daemon, or a
    part of it, cannot work. SKIP: the check could not run.
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
        message: the result, in one line.
        details: further lines about the result.
        advice: lines with what to do next; empty = nothing.
        cause: name of the check whose failure prevents this check; empty = none.
        prevented: names of the checks that this check's failure prevents.
    """

    severity: Severity
    message: str
    details: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    cause: str = ""
    prevented: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether checks that depend on this check can run."""
        return self.severity in (Severity.OK, Severity.WARN)

    def __str__(self) -> str:
        return "; ".join((self.message, *self.details, *self.advice))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """A finding with the name of its check, and the duration of the check in seconds."""

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
    """The user that the API server has authenticated."""

    username: str = ""
    groups: list[str] | None = None


@dataclass(slots=True, kw_only=True)
class Case:
    """State of one examination; each check adds data for later checks.

    Attributes:
        options: the daemon's flags.
        environ: environment variables, for the kubeconfig and exec plugins.
        impersonated_user: value of `--as`, the user whose permissions are checked; empty = the
            command's own user.
        limit_s: time limit of one check, in seconds.
        service_account: folder with the service account token of a Pod.
        reads_only: whether API clients refuse all requests but GET, even access reviews.
        exit_stack: closes the resources that the checks opened.
        findings: findings so far, by name of the check.
        causes: name of a skipped check -> name of the check whose failure is the cause.
        cluster: connection settings of the API server; set by the check `kubeconfig`.
        client: client for the API server; set by the check `kubeconfig`.
        user: the command's user; set by the check `identity`.
        skew_s: seconds by which the API server's clock is ahead of the local clock; None =
            unknown; set by the check `identity`.
        lease_holder: holder of the Lease; empty = none; None = unknown; set by the check `lease`.
        opener: opens the provider; set by the check `provider`.
        cloud: the open provider; set by the check `cloud-config`.
        listing: all instances; None if the provider cannot list them; set by the check `cloud`.
        without_instance: name of a node -> why it has no instance; set by the check `instances`.
        role_clients: role of another cluster -> client for it; see `reach.client_of_role`.
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
        """Return all nodes, sorted by name; they are read once. Raises KubeError."""
        if self._nodes is None:
            pages = self.client.resource(NODES).pages()
            nodes = [node async for page in pages for node in page.items]
            self._nodes = sorted(nodes, key=lambda node: node.name)
        return self._nodes

    def is_usable(self, check: str) -> bool:
        """Return whether a check has run, and checks that depend on it can run."""
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
    """Return the text field of a decoded object at a dotted path; empty if it is missing."""
    return get_field(obj, path) or ""


# --- findings as text ---------------------------------------------------------------------------


def failed(results: Sequence[CheckResult]) -> bool:
    return any(result.finding.severity is Severity.FAIL for result in results)


def text(result: CheckResult) -> Iterator[str]:
    """Yield the output lines of a result; no line if another check reports the cause."""
    finding = result.finding
    if finding.cause:
        return
    yield f"{finding.severity.value:<4}  {result.check}: {finding.message}"
    yield from (f"      {line}" for line in finding.details)
    yield from (f"      next: {line}" for line in finding.advice)
    if finding.prevented:
        yield f"      skipped as a result: {', '.join(finding.prevented)}"


def summary(results: Sequence[CheckResult]) -> str:
    """Return one line with the number of results by severity."""
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
    """Return the names, at most `SHOWN`, and the number of further names."""
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} more"


def count(number: int, one: str, more: str = "") -> str:
    """Return a number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def which(number: int, whole: int, noun: str, one: str, more: str) -> str:
    """Return a part of a whole with its verb: `1 of 3 nodes has`, `2 of 3 nodes have`."""
    return f"{number} of {count(whole, noun)} {one if number == 1 else more}"
