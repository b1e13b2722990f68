"""The order of all checks, what each of them builds on, and how long it may take.

A check whose base is missing is not made, and says so: one cause, one failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace

from ccm.base import clock, redact
from ccm.base.tasks import leaves
from ccm.cloud import errors as cloud_errors
from ccm.doctor import (
    cluster,
    deployment,
    leases,
    machines,
    nodes,
    outlook,
    provider,
    reach,
    rights,
    tokens,
)
from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, Result, Verdict, fail, skip, warn
from ccm.kube import errors


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: for people and programs; never changed.
        title: what it looks at, for people who wait.
        make: makes it.
        needs: checks without which it cannot be made.
        told_by: checks after it that say why it could not be made.
    """

    name: str
    title: str
    make: Callable[[Case], Awaitable[Finding]]
    needs: tuple[str, ...] = ()
    told_by: tuple[str, ...] = ()


CHECKS = (
    # What people have to know first. It goes its own way to the API server and to the cloud.
    Check(
        "start",
        "what starting the daemon would delete",
        outlook.start,
        told_by=("kubeconfig", "server", "identity", "provider", "cloud-config", "cluster-id"),
    ),
    Check("flags", "the daemon's flags", provider.flags),
    Check("kubeconfig", "how to reach the API server", reach.kubeconfig),
    Check("server", "whether the API server answers", reach.server, needs=("kubeconfig",)),
    Check("identity", "who we are there", reach.identity, needs=("server",)),
    Check("clock", "whether clocks agree", reach.clock, needs=("identity",)),
    Check("permissions", "what the daemon may do", rights.permissions, needs=("identity",)),
    Check("deployment", "the daemon's Pods", deployment.deployment, needs=("identity",)),
    Check("secrets", "the Secrets they need", deployment.secrets, needs=("identity",)),
    Check("lease", "who leads", leases.lease, needs=("identity",)),
    Check("managers", "who else manages", leases.managers, needs=("identity",)),
    Check("webhooks", "admission webhooks", cluster.webhooks, needs=("identity",)),
    Check("deletions", "what is not deleted", cluster.deletions_held, needs=("identity",)),
    Check("provider", "the provider", provider.provider),
    Check(
        "cloud-config", "the provider's configuration", provider.cloud_config, needs=("provider",)
    ),
    Check(
        "cluster-id",
        "how the cloud knows the cluster",
        provider.cluster_id,
        needs=("cloud-config",),
    ),
    Check("cloud", "whether the cloud answers", provider.cloud, needs=("cloud-config",)),
    Check("controllers", "which controllers work", provider.controllers, needs=("cloud-config",)),
    Check("kubelets", "how nodes registered", nodes.kubelets, needs=("identity",)),
    Check(
        "provider-ids",
        "whose the nodes are",
        nodes.provider_ids,
        needs=("identity", "cloud-config"),
    ),
    Check("instances", "the nodes' instances", nodes.instances, needs=("identity", "cloud")),
    Check("taints", "nodes that wait", nodes.taints, needs=("identity",)),
    Check("pod-cidrs", "the nodes' Pod ranges", nodes.pod_cidrs, needs=("identity", "controllers")),
    Check("persistence", "where copies are kept", cluster.persistence, needs=("identity",)),
    Check("services", "unclaimed Services", cluster.unclaimed, needs=("identity", "cloud-config")),
    Check("machines", "how Machines are", machines.machines, needs=("identity", "cloud-config")),
    Check("machine-crds", "whether Machines stay", machines.crds, needs=("machines",)),
    Check("machine-classes", "what Machines are made of", machines.classes, needs=("machines",)),
    Check("machine-vms", "whose the VMs are", machines.vms, needs=("machines",)),
    Check(
        "bootstrap-tokens",
        "which Secrets the daemon may write",
        tokens.bootstrap_tokens,
        needs=("identity",),
    ),
)
"""All of them, in order."""

HIDDEN = "rights"
"""The cause of what our own user may not look at; told once, at the end."""


async def examine(case: Case, about_to: Callable[[Check], None]) -> AsyncGenerator[Result, None]:
    """Make all checks, one after the other; what they opened is closed at the end.

    Args:
        case: what is examined.
        about_to: told before each check.
    """
    try:
        for check in CHECKS:
            about_to(check)
            yield await _timed(check, case)
        if hidden := [name for name, one in case.findings.items() if one.cause == HIDDEN]:
            yield Result(check=HIDDEN, finding=_hidden(case, hidden))
    finally:
        fault = await _closed(case)
    if fault is not None:
        yield Result(check="end", finding=fault)


async def _timed(check: Check, case: Case) -> Result:
    started = clock.monotonic()
    finding = _clean(await _make(check, case))
    if not finding.is_usable and finding.cause in ("", HIDDEN):
        finding = replace(finding, without=_lose(check.name, case))
    case.findings[check.name] = finding
    return Result(check=check.name, finding=finding, seconds=clock.monotonic() - started)


def _lose(name: str, case: Case) -> tuple[str, ...]:
    """The checks that can no longer be made without one, each told of its first cause only."""
    lost = [name]
    for check in CHECKS:
        builds_on = (*check.needs, *check.told_by)
        if check.name not in case.causes and not set(lost).isdisjoint(builds_on):
            case.causes[check.name] = name
            lost.append(check.name)
    return tuple(lost[1:])


async def _closed(case: Case) -> Finding | None:
    """Close what was opened; what went wrong then."""
    try:
        async with asyncio.timeout(case.limit_s):
            await case.exits.aclose()
    except Exception as error:  # noqa: BLE001 - a provider may fail in any way
        return _clean(warn(f"the provider does not close well: {type(error).__name__}: {error}"))
    return None


async def _make(check: Check, case: Case) -> Finding:
    if cause := case.causes.get(check.name):
        return skip(f"not looked at without {cause}", cause=cause)
    try:
        async with asyncio.timeout(case.limit_s):
            return await check.make(case)
    except TimeoutError:
        return fail(
            f"not finished within {case.limit_s:g} s",
            "see what is slow, or give it more time with --timeout",
        )
    except Exception as error:  # noqa: BLE001 - the other checks are made all the same
        return _stumbled(error)


def _stumbled(error: Exception) -> Finding:
    """What a check could not foresee."""
    causes = list(leaves(error))
    for cause in causes:
        if isinstance(cause, errors.Forbidden):
            return skip(f"not looked at: {cause}", cause=HIDDEN)
        if isinstance(cause, errors.KubeError):
            return fail(f"the API server does not answer as it should: {cause}", "try again")
        if isinstance(cause, cloud_errors.CloudError):
            return fail(f"the cloud does not answer as it should: {cause}", "try again")
    cause = causes[0]
    return fail(
        f"the check itself failed: {type(cause).__name__}: {cause}",
        "report this, it is a defect of this program or of the provider",
    )


def _hidden(case: Case, checks: list[str]) -> Finding:
    """All that our user may not look at, under this one cause."""
    lost = [lost for name in checks for lost in (name, *case.findings[name].without)]
    who = case.user.username or "the user of the kubeconfig"
    return Finding(
        verdict=Verdict.SKIP,
        found=f"{who} may not look at everything; not looked at: {', '.join(lost)}",
        details=tuple(
            f"{name}: {case.findings[name].found.removeprefix('not looked at: ')}"
            for name in checks
        ),
        advice=("nothing, if that is the daemon's own user; else ask an administrator",),
    )


def _clean(finding: Finding) -> Finding:
    """Without secrets, and each text on one line."""
    return replace(
        finding,
        found=_line(finding.found),
        details=tuple(map(_line, finding.details)),
        advice=tuple(map(_line, finding.advice)),
    )


def _line(text: str) -> str:
    return " ".join(redact.words(text).split())
