"""All checks in order, with their dependencies and time limit.

A check is skipped if a dependency failed, so that one cause reports one failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace

from ccm.base import clock, redact
from ccm.base.tasks import leaves
from ccm.cloud import errors as cloud_errors
from ccm.doctor import cluster, daemons, machines, nodes, outlook, provider, reach, rights
from ccm.doctor.case import Case, Finding, Result, Verdict, fail, skip, warn
from ccm.kube import errors


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Attributes:
        name: stable name for users and programs.
        title: subject of the check, for the progress display.
        make: runs the check.
        needs: checks that must succeed first.
        told_by: later checks that report why this one could not run.
    """

    name: str
    title: str
    make: Callable[[Case], Awaitable[Finding]]
    needs: tuple[str, ...] = ()
    told_by: tuple[str, ...] = ()


_HERE, _THERE, _BOTH = ("identity",), ("cloud-config",), ("identity", "cloud-config")

CHECKS = (
    # First, because operators must see it first. It opens its own clients.
    Check(
        "start",
        "what starting the daemon would delete",
        outlook.start,
        told_by=("kubeconfig", "server", "identity", "provider", "cloud-config", "cluster-id"),
    ),
    Check("flags", "the daemon's flags", provider.flags),
    Check("kubeconfig", "how to reach the API server", reach.kubeconfig),
    Check("server", "whether the API server answers", reach.server, ("kubeconfig",)),
    Check("identity", "who we are there", reach.identity, ("server",)),
    Check("clock", "whether clocks agree", reach.clock, _HERE),
    Check("permissions", "what the daemon may do", rights.permissions, _HERE),
    Check("deployment", "the daemon's Pods", daemons.deployment, _HERE),
    Check("secrets", "the Secrets they need", daemons.secrets, _HERE),
    Check("lease", "who leads", daemons.lease, _HERE),
    Check("managers", "who else manages", daemons.managers, _HERE),
    Check("webhooks", "admission webhooks", cluster.webhooks, _HERE),
    Check("deletions", "what is not deleted", cluster.deletions_held, _HERE),
    Check("provider", "the provider", provider.provider),
    Check("cloud-config", "the provider's configuration", provider.cloud_config, ("provider",)),
    Check("cluster-id", "how the cloud knows the cluster", provider.cluster_id, _THERE),
    Check("cloud", "whether the cloud answers", provider.cloud, _THERE),
    Check("controllers", "which controllers work", provider.controllers, _THERE),
    Check("kubelets", "how nodes registered", nodes.kubelets, _HERE),
    Check("provider-ids", "whose the nodes are", nodes.provider_ids, _BOTH),
    Check("instances", "the nodes' instances", nodes.instances, ("identity", "cloud")),
    Check("taints", "nodes that wait", nodes.taints, _HERE),
    Check("pod-cidrs", "the nodes' Pod ranges", nodes.pod_cidrs, ("identity", "controllers")),
    Check("persistence", "where copies are kept", cluster.persistence, _HERE),
    Check("services", "unclaimed Services", cluster.unclaimed, _BOTH),
    Check("machines", "how Machines are", machines.machines, _BOTH),
    Check("machine-crds", "whether Machines stay", machines.crds, ("machines",)),
    Check("machine-classes", "what Machines are made of", machines.classes, ("machines",)),
    Check("machine-vms", "whose the VMs are", machines.vms, ("machines",)),
    Check("bootstrap-tokens", "which Secrets the daemon may write", rights.bootstrap_tokens, _HERE),
)
"""All checks, in order."""

HIDDEN = "rights"
"""Cause of the checks for which our user lacks permission; reported once, at the end."""


async def examine(case: Case, about_to: Callable[[Check], None]) -> AsyncGenerator[Result, None]:
    """Run all checks one after the other; close at the end what they opened.

    Args:
        about_to: called before each check.
    """
    fault: Finding | None = None
    try:
        for check in CHECKS:
            about_to(check)
            began = clock.monotonic()
            finding = _clean(await _make(check, case))
            if not finding.is_usable and finding.cause in ("", HIDDEN):
                finding = replace(finding, without=_lose(check.name, case))
            case.findings[check.name] = finding
            seconds = clock.monotonic() - began
            yield Result(check=check.name, finding=finding, seconds=seconds)
        if hidden := [name for name, item in case.findings.items() if item.cause == HIDDEN]:
            yield Result(check=HIDDEN, finding=_hidden(case, hidden))
    finally:
        try:
            async with asyncio.timeout(case.limit_s):
                await case.exits.aclose()
        except Exception as error:  # noqa: BLE001 - a provider may fail in any way
            text = f"the provider does not close well: {type(error).__name__}: {error}"
            fault = _clean(warn(text))
    if fault is not None:
        yield Result(check="end", finding=fault)


def _lose(name: str, case: Case) -> tuple[str, ...]:
    """Record and return the checks that a failed check prevents; earlier causes stay."""
    lost = [name]
    for check in CHECKS:
        dependencies = (*check.needs, *check.told_by)
        if check.name not in case.causes and not set(lost).isdisjoint(dependencies):
            case.causes[check.name] = name
            lost.append(check.name)
    return tuple(lost[1:])


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
    except Exception as error:  # noqa: BLE001 - the other checks still run
        causes = list(leaves(error))
    for cause_ in causes:
        if isinstance(cause_, errors.Forbidden):
            return skip(f"not looked at: {cause_}", cause=HIDDEN)
        if isinstance(cause_, errors.KubeError):
            return fail(f"the API server does not answer as it should: {cause_}", "try again")
        if isinstance(cause_, cloud_errors.CloudError):
            return fail(f"the cloud does not answer as it should: {cause_}", "try again")
    return fail(
        f"the check itself failed: {type(causes[0]).__name__}: {causes[0]}",
        "report this, it is a defect of this program or of the provider",
    )


def _hidden(case: Case, checks: list[str]) -> Finding:
    """Return one finding for all checks for which our user lacks permission."""
    skipped = [skipped for name in checks for skipped in (name, *case.findings[name].without)]
    user = case.user.username or "the user of the kubeconfig"
    return Finding(
        verdict=Verdict.SKIP,
        found=f"{user} may not look at everything; not looked at: {', '.join(skipped)}",
        details=tuple(
            f"{name}: {case.findings[name].found.removeprefix('not looked at: ')}"
            for name in checks
        ),
        advice=("nothing, if that is the daemon's own user; else ask an administrator",),
    )


def _clean(finding: Finding) -> Finding:
    """Return the finding with secrets redacted and each text on one line."""

    def line(text: str) -> str:
        return " ".join(redact.words(text).split())

    return replace(
        finding,
        found=line(finding.found),
        details=tuple(map(line, finding.details)),
        advice=tuple(map(line, finding.advice)),
    )
