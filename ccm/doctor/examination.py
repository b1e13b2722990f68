"""All checks in order, with their dependencies and time limit.

A check is skipped if a check that it depends on has failed. So each cause is reported once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace

from ccm.app.machineapis import KUBERMATIC
from ccm.app.options import Options
from ccm.app.options.controllers import enabled
from ccm.app.options.generic import JOURNAL_OFF
from ccm.base import clock, redact
from ccm.base.tasks import leaf_exceptions
from ccm.cloud import errors as cloud_errors
from ccm.doctor import (
    cluster,
    daemons,
    journal,
    machines,
    nodes,
    permissions,
    provider,
    reach,
    start_forecast,
)
from ccm.doctor.case import Case, CheckFinding, CheckResult, Severity, fail, skip, warn
from ccm.kube import errors


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check.

    Attributes:
        name: name of the check in the output; never changes.
        title: subject of the check, for the progress display.
        run: runs the check.
        needs: names of the checks that must succeed first.
        reported_by: names of later checks that report why this check could not run.
        is_relevant: whether to run the check with these flags; else the output omits it.
    """

    name: str
    title: str
    run: Callable[[Case], Awaitable[CheckFinding]]
    needs: tuple[str, ...] = ()
    reported_by: tuple[str, ...] = ()
    is_relevant: Callable[[Options], bool] = lambda _options: True


_HERE, _THERE, _BOTH = ("identity",), ("cloud-config",), ("identity", "cloud-config")


def _kubermatic(
    name: str,
    title: str,
    run: Callable[[Case], Awaitable[CheckFinding]],
    needs: tuple[str, ...] = ("kubermatic-machines",),
) -> DoctorCheck:
    return DoctorCheck(
        f"kubermatic-{name}",
        f"Kubermatic: {title}",
        run,
        needs,
        is_relevant=lambda options: KUBERMATIC.manifest in enabled(options.controllers),
    )


CHECKS = (
    # First, because the administrator must see its result first. This check opens clients of its
    # own.
    DoctorCheck(
        "start",
        "deletions at a start",
        start_forecast.deletions_at_start,
        reported_by=("kubeconfig", "server", "identity", "provider", "cloud-config", "cluster-id"),
    ),
    DoctorCheck("flags", "the daemon's flags", provider.flags),
    DoctorCheck("kubeconfig", "kubeconfig or in-cluster configuration", reach.kubeconfig),
    DoctorCheck("server", "availability of the API server", reach.server, ("kubeconfig",)),
    DoctorCheck("identity", "authenticated user", reach.identity, ("server",)),
    DoctorCheck("clock", "clock skew", reach.clock, _HERE),
    DoctorCheck("permissions", "permissions of the daemon", permissions.permissions, _HERE),
    DoctorCheck("deployment", "Deployment and Pods of the daemon", daemons.deployment, _HERE),
    DoctorCheck("secrets", "Secrets of the Pods", daemons.secrets, _HERE),
    DoctorCheck("lease", "leader election", daemons.lease, _HERE),
    DoctorCheck("managers", "other managers", daemons.managers, _HERE),
    DoctorCheck("webhooks", "admission webhooks", cluster.webhooks, _HERE),
    DoctorCheck("deletions", "blocked deletions", cluster.report_blocked_deletions, _HERE),
    DoctorCheck("provider", "the provider", provider.provider),
    DoctorCheck(
        "cloud-config", "the provider's configuration", provider.cloud_config, ("provider",)
    ),
    DoctorCheck("cluster-id", "cluster ID in the cloud", provider.cluster_id, _THERE),
    DoctorCheck("cloud", "availability of the cloud API", provider.cloud, _THERE),
    DoctorCheck("controllers", "enabled controllers", provider.controllers, _THERE),
    DoctorCheck("kubelets", "registration of nodes", nodes.kubelets, _HERE),
    DoctorCheck("provider-ids", "ownership of nodes", nodes.provider_ids, _BOTH),
    DoctorCheck("instances", "instances of nodes", nodes.instances, ("identity", "cloud")),
    DoctorCheck("taints", "uninitialised nodes", nodes.taints, _HERE),
    DoctorCheck("pod-cidrs", "Pod ranges of nodes", nodes.pod_cidrs, ("identity", "controllers")),
    DoctorCheck("persistence", "persistent storage", cluster.persistence, _HERE),
    DoctorCheck(
        "journal",
        "orphans in the journal",
        journal.check,
        _HERE,
        is_relevant=lambda options: options.journal != JOURNAL_OFF,
    ),
    DoctorCheck("services", "Services without a load balancer", cluster.unserved_services, _BOTH),
    DoctorCheck("machines", "state of Machines", machines.machines, _BOTH),
    DoctorCheck("machine-crds", "CRDs of Machines", machines.crds, ("machines",)),
    DoctorCheck("machine-classes", "MachineClasses", machines.classes, ("machines",)),
    DoctorCheck("machine-vms", "ownership of VMs", machines.vms, ("machines",)),
    _kubermatic(
        "machines", "state of Machines", lambda case: machines.machines(case, KUBERMATIC), _BOTH
    ),
    _kubermatic("crds", "CRDs of Machines", lambda case: machines.crds(case, KUBERMATIC)),
    _kubermatic("specs", "providers and user data", machines.specs),
    _kubermatic("vms", "ownership of VMs", lambda case: machines.vms(case, KUBERMATIC)),
    _kubermatic("lease", "other manager of Machines", daemons.machine_manager, _HERE),
    DoctorCheck(
        "bootstrap-tokens",
        "permission to create bootstrap tokens",
        permissions.bootstrap_tokens,
        _HERE,
    ),
)
"""All checks, in order."""

FORBIDDEN_CAUSE = "rights"
"""Cause of checks for which the command's user lacks permission; reported once, at the end."""


async def examine(
    case: Case, about_to: Callable[[DoctorCheck], None]
) -> AsyncGenerator[CheckResult, None]:
    """Run all checks one after the other, and yield their results; then close the case.

    Args:
        case: state that the checks share.
        about_to: called before each check.
    """
    fault: CheckFinding | None = None
    try:
        for check in (check for check in CHECKS if check.is_relevant(case.options)):
            about_to(check)
            began = clock.monotonic()
            finding = _clean(await _run_check(check, case))
            if not finding.is_usable and finding.cause in ("", FORBIDDEN_CAUSE):
                finding = replace(finding, prevented=_mark_prevented(check.name, case))
            case.findings[check.name] = finding
            seconds = clock.monotonic() - began
            yield CheckResult(check=check.name, finding=finding, seconds=seconds)
        if hidden := [
            name for name, item in case.findings.items() if item.cause == FORBIDDEN_CAUSE
        ]:
            yield CheckResult(check=FORBIDDEN_CAUSE, finding=_hidden(case, hidden))
    finally:
        try:
            async with asyncio.timeout(case.limit_s):
                await case.exit_stack.aclose()
        except Exception as error:  # noqa: BLE001 - a provider may fail in any way
            text = f"closing the provider failed: {type(error).__name__}: {error}"
            fault = _clean(warn(text))
    if fault is not None:
        yield CheckResult(check="end", finding=fault)


def _mark_prevented(name: str, case: Case) -> tuple[str, ...]:
    """Return the checks that depend on a failed check, and record that check as their cause.

    A check that already has a cause keeps that cause.
    """
    lost = [name]
    for check in CHECKS:
        dependencies = (*check.needs, *check.reported_by)
        is_lost = check.is_relevant(case.options) and not set(lost).isdisjoint(dependencies)
        if check.name not in case.causes and is_lost:
            case.causes[check.name] = name
            lost.append(check.name)
    return tuple(lost[1:])


async def _run_check(check: DoctorCheck, case: Case) -> CheckFinding:
    if cause := case.causes.get(check.name):
        return skip(f"skipped: depends on {cause}", cause=cause)
    try:
        async with asyncio.timeout(case.limit_s):
            return await check.run(case)
    except TimeoutError:
        return fail(
            f"not finished within {case.limit_s:g} s",
            "find the cause of the delay, or raise --timeout",
        )
    except Exception as error:  # noqa: BLE001 - the other checks still run
        causes = list(leaf_exceptions(error))
    for cause_ in causes:
        if isinstance(cause_, errors.Forbidden):
            return skip(f"no permission: {cause_}", cause=FORBIDDEN_CAUSE)
        if isinstance(cause_, errors.KubeError):
            return fail(f"a request to the API server failed: {cause_}", "try again")
        if isinstance(cause_, cloud_errors.CloudError):
            return fail(f"a call to the cloud failed: {cause_}", "try again")
    return fail(
        f"the check itself failed: {type(causes[0]).__name__}: {causes[0]}",
        "report this as a bug of kube-ccm or of the provider",
    )


def _hidden(case: Case, checks: list[str]) -> CheckFinding:
    """Return one finding for all checks for which the command's user lacks permission."""
    skipped = [skipped for name in checks for skipped in (name, *case.findings[name].prevented)]
    user = case.user.username or "the user of the kubeconfig"
    return CheckFinding(
        severity=Severity.SKIP,
        message=f"{user} lacks permissions; skipped: {', '.join(skipped)}",
        details=tuple(
            f"{name}: {case.findings[name].message.removeprefix('no permission: ')}"
            for name in checks
        ),
        advice=("nothing to do if this is the daemon's own user; otherwise ask an administrator",),
    )


def _clean(finding: CheckFinding) -> CheckFinding:
    """Return the finding with secrets redacted, and each of its texts on one line."""

    def line(text: str) -> str:
        return " ".join(redact.mask_text(text).split())

    return replace(
        finding,
        message=line(finding.message),
        details=tuple(map(line, finding.details)),
        advice=tuple(map(line, finding.advice)),
    )
