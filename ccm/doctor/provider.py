"""Checks of the provider: its configuration, and whether its cloud answers.

The checks make only read calls to the cloud. The API clients for the provider refuse to write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ccm.app import http
from ccm.app.clients import ProviderClient
from ccm.app.options.controllers import enabled
from ccm.app.provider import Misconfigured, context, opened_once
from ccm.base.flags import missing
from ccm.cloud import errors, registry
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.config import ApiClient
from ccm.cloud.interface import Cloud, InstanceStates, Inventory, LoadBalancerDigests
from ccm.cloud.lookup import InstanceLookup
from ccm.cloud.settings import ConfigError
from ccm.doctor import ExaminationError, reach
from ccm.doctor.case import Case, CheckFinding, Severity, count, fail, ok, some, warn
from ccm.kube.client import Client
from ccm.runtime.manifest import Manifest

OFFERS: Mapping[str, str] = {
    "instances": "instances",
    "instances_v1": "instances (v1)",
    "zones": "zones",
    "inventory": "bulk listing",
    "load_balancer": "load balancers",
    "routes": "routes",
    "clusters": "clusters",
    "machines": "machines",
    "kubermatic": "Kubermatic machines",
}
"""Field of `Cloud` -> name of the interface in messages."""


def offers(cloud: Cloud) -> Sequence[str]:
    """Return the names of the interfaces that an open provider implements, for messages."""
    parts = {name: getattr(cloud, name) for name in OFFERS}
    capabilities = [OFFERS[name] for name, part in parts.items() if part is not None]
    if isinstance(parts["instances"], InstanceStates):
        capabilities.append("existence and power state in one call")
    if isinstance(parts["load_balancer"], LoadBalancerDigests):
        capabilities.append("load balancers compared by digest")
    return capabilities


class ReadOnlyClients:
    """Factory of API clients for a provider under examination; the clients refuse to write."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def client(self, name: str) -> ApiClient:
        """Return a client that raises FailedPrecondition for every write."""
        del name

        def check(method: str, path: str) -> None:
            if method.upper() not in ("GET", "HEAD"):
                raise errors.FailedPrecondition(
                    f"the provider tried to {method} {path}; writes are refused during an "
                    "examination"
                )

        return ProviderClient(self._client, check=check)


async def flags(case: Case) -> CheckFinding:
    """Report flags that are deprecated or have no effect; invalid flags are rejected earlier."""
    given = len(case.options.explicit)
    notices = [*case.options.deprecations(), *case.options.notices()]
    unserved = http.unserved_reason(case.options)
    if notices or unserved:
        advice = ["remove or replace these flags"] if notices else []
        if unserved:
            advice.append("set the flags that --webhooks needs, or remove --webhooks")
        return warn(
            f"{count(given, 'setting')} given: {'; '.join(filter(None, [*notices, unserved]))}",
            *advice,
        )
    return ok(f"{count(given, 'setting')} given, all have an effect")


async def provider(case: Case) -> CheckFinding:
    """Check that the provider is installed and can be imported."""
    name = case.options.cloud_provider
    if not name:
        return fail(missing("cloud-provider"), "pass the daemon's flags to this command")
    try:
        case.opener = registry.load_provider(name)
    except registry.ProviderError as error:
        return fail(
            str(error),
            "install the provider's Python package; `kube-ccm providers` lists installed providers",
        )
    entry = registry.installed_providers()[name]
    origin = f", {entry.dist.name} {entry.dist.version}" if entry.dist else ""
    return ok(f"{name} ({entry.value}{origin})")


async def cloud_config(case: Case) -> CheckFinding:
    """Check that the provider opens with its configuration."""
    name, file = case.options.cloud_provider, case.options.cloud_config
    shown = file or "no --cloud-config"
    try:
        given = context(
            file=file,
            cluster_name=case.options.cluster_name,
            clients=ReadOnlyClients(case.client) if case.is_usable("kubeconfig") else None,
        )
        case.cloud = await case.exit_stack.enter_async_context(
            opened_once(name, case.opener, given)
        )
    except Misconfigured as error:
        advice = f"correct the configuration; `kube-ccm providers {name}` lists its settings"
        if isinstance(error.__cause__, ConfigError):
            faults = error.__cause__.faults
            return fail(f"{shown}: {faults[0]}", advice, details=faults[1:])
        return fail(str(error), advice)
    except TimeoutError:
        raise
    except Exception as error:  # noqa: BLE001 - a provider may fail in any way
        return _failed(errors.normalize(error), name, "the provider cannot be opened: ")
    return ok(f"{shown} is valid; the provider offers {some(offers(case.cloud))}")


async def cluster_id(case: Case) -> CheckFinding:
    """Check whether the provider has a cluster ID, to distinguish this cluster's resources."""
    if case.cloud.has_cluster_id:
        return ok(f"the provider has a cluster ID; the cluster name is {case.options.cluster_name}")
    advice = "set a cluster ID in the provider's configuration"
    message = (
        "the provider does not distinguish the resources of this cluster from those of other "
        "clusters"
    )
    if case.options.allow_untagged_cloud:
        return warn(f"{message}; --allow-untagged-cloud permits this", advice)
    return fail(message, f"{advice}, or pass --allow-untagged-cloud")


async def cloud(case: Case) -> CheckFinding:
    """Check that the cloud answers, and run the provider's own checks."""
    answer = await _answer(case)
    if case.cloud.examine is None:
        return answer
    try:
        findings = [finding async for finding in case.cloud.examine()]
    except errors.CloudError as error:
        return answer if not answer.is_usable else _failed(error, case.options.cloud_provider)
    wrong = sorted((one for one in findings if one.advice), key=lambda one: not one.is_failure)
    details = [one.message for one in findings if one not in wrong[:1]]
    if not wrong:
        return replace(answer, details=tuple(details))
    report = fail if wrong[0].is_failure or not answer.is_usable else warn
    advice = dict.fromkeys(one.advice for one in wrong)
    return report(wrong[0].message, *advice, details=[answer.message, *details])


async def _answer(case: Case) -> CheckFinding:
    """Check that the cloud answers a read call that needs credentials."""
    handle = CloudClient(case.cloud)
    name = case.options.cloud_provider
    try:
        if handle.offers(Inventory):
            case.listing = await handle.call(Inventory.list_instances)
            return ok(f"the cloud answers: {count(len(case.listing.instances), 'instance')}")
        if case.cloud.instances is None and case.cloud.instances_v1 is None:
            return warn("not checked: the provider does not implement instances")
        nodes = await case.nodes() if case.is_usable("identity") else ()
        if not nodes:
            return warn("not checked: the provider lists no instances, and there is no node")
        state = await InstanceLookup(handle).state(nodes[0])
        verb = "exists" if state.exists else "does not exist"
        return ok(f"the cloud answers: the instance of {nodes[0].name} {verb}")
    except (errors.NotFound, errors.Unimplemented, errors.InvalidArgument) as error:
        return ok(f"the cloud answers: {error}")
    except errors.CloudError as error:
        return _failed(error, name)


async def controllers(case: Case) -> CheckFinding:
    """Report which controllers start with this provider and these flags."""
    working, absent, wrong = [], [], []
    for controller in enabled(case.options.controllers):
        lacking, fault = (
            controller.skip_reason(case.options, case.cloud),
            controller.config_fault(case.options),
        )
        if lacking:
            absent.append(f"{controller.name} is disabled: {lacking}")
        elif fault:
            wrong.append(f"{controller.name} cannot start: {fault}")
        else:
            working.append(controller.name)
    if wrong:
        return fail(
            "; ".join(wrong),
            "correct the setting, or disable the controller with --controllers",
            details=absent,
        )
    if not working:
        return fail(
            "no controller can run with these flags",
            "check --controllers and the features of the provider",
            details=absent,
        )
    return ok(", ".join(working), *absent)


def is_startable(case: Case, controller: Manifest[Any]) -> bool:
    """Return whether a controller would run with this provider and these flags."""
    return controller in enabled(case.options.controllers) and not (
        controller.skip_reason(case.options, case.cloud) or controller.config_fault(case.options)
    )


def _failed(error: errors.CloudError, name: str, head: str = "") -> CheckFinding:
    match error:
        case errors.Unauthenticated():
            kind = "the cloud rejects the credentials"
            advice = (
                f"set valid credentials in --cloud-config; `kube-ccm providers {name}` lists its "
                "settings"
            )
        case errors.PermissionDenied():
            kind = "the credentials are valid, but lack a permission"
            advice = "grant the cloud account permission to read instances"
        case errors.Unavailable() | errors.DeadlineExceeded():
            kind = "the cloud does not answer"
            advice = (
                "check the address in --cloud-config, the network and DNS from here to the cloud, "
                "and the cloud's status page; the daemon retries automatically"
            )
        case _:
            kind = "the cloud returned an error"
            advice = "check the cloud's status page, or ask the maintainers of the provider"
    return fail(f"{head}{kind}: {error}", advice)


async def open_provider(case: Case) -> None:
    """Set `client` and `cloud` of a case; the case's `exit_stack` closes them.

    Raises:
        ExaminationError: a check of the kubeconfig or of the provider failed.
    """
    for name, check in (
        ("kubeconfig", reach.kubeconfig),
        ("provider", provider),
        ("cloud-config", cloud_config),
        ("cluster-id", cluster_id),
    ):
        finding = case.findings[name] = await check(case)
        if finding.severity is Severity.FAIL:
            raise ExaminationError(str(finding), check=name)
