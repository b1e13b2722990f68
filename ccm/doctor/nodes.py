"""Checks of nodes: registration, ownership, instances, initialisation and Pod CIDRs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ccm.base import clock
from ccm.base.tasks import run_bounded
from ccm.cloud import errors
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.lookup import InstanceLookup, NodeOwnership
from ccm.cloud.types import InstanceListing
from ccm.controllers.route import plan as route_plan
from ccm.controllers.route.manifest import MANIFEST
from ccm.doctor import provider
from ccm.doctor.case import Case, CheckFinding, count, fail, ok, some, warn, which
from ccm.doctor.daemons import START_ADVICE
from ccm.kube.errors import KubeError
from ccm.kube.resources import EVENTS
from ccm.model import Node, times
from ccm.model.cidr import parse_cidr, parse_ranges
from ccm.model.node import is_uninitialized

MAX_SINGLE_LOOKUPS = 100
"""Maximum number of nodes whose instances are looked up by single calls."""

CONCURRENCY = 8
"""Maximum number of concurrent lookups."""

LATE_AFTER_S = 60.0
"""Seconds for which a node may stay uninitialised before the check fails."""

_ALIKE = 0.7
_NO_DAEMON = "no daemon is active"
_MISSING_INSTANCE = {
    False: "a node without provider ID is matched by name: rename the instance, or set the "
    "kubelet's --hostname-override to the name of the instance and register the node again",
    True: "a node with a provider ID needs no action: the daemon deletes it, because its instance "
    "is gone, as soon as the node is not ready",
}
"""Whether a node without an instance has a provider ID -> advice."""
_WARNINGS = "involvedObject.kind=Node,type=Warning"


async def kubelets(case: Case) -> CheckFinding:
    """Find nodes whose kubelets run without `--cloud-provider=external`."""
    nodes = await case.nodes()
    if not nodes:
        return ok("there are no nodes yet")
    bare = [node.name for node in nodes if not node.provider_id and not is_uninitialized(node)]
    if bare:
        return warn(
            f"{which(len(bare), len(nodes), 'node', 'was', 'were')} registered without "
            f"--cloud-provider=external: {some(bare)}",
            "start their kubelets with --cloud-provider=external, delete the Nodes, and let the "
            "kubelets register them again",
        )
    return ok(f"{count(len(nodes), 'node')}, each has a provider ID or waits for one")


async def provider_ids(case: Case) -> CheckFinding:
    """Find nodes that belong to another cloud or manager, and provider IDs that nodes share."""
    nodes, owners = await case.nodes(), dict[str, list[str]]()
    for node in nodes:
        if node.provider_id:
            owners.setdefault(node.provider_id, []).append(node.name)
    if shared := [
        f"{provider_id} ({some(names)})" for provider_id, names in owners.items() if len(names) > 1
    ]:
        return fail(
            f"{count(len(shared), 'provider ID')} used by two or more nodes: {some(shared)}",
            "find the node that runs on that instance, delete the others, and start their kubelets "
            "without --provider-id, and with the names of their own instances as node names",
        )
    if strangers := [node for node in nodes if _is_foreign(case, node)]:
        shown = [f"{node.name} ({node.provider_id})" for node in strangers]
        return warn(
            f"{which(len(strangers), len(nodes), 'node', 'belongs', 'belong')} to another cloud "
            f"or manager: {some(shown)}",
            "nothing to do if intended: this daemon ignores these nodes. Otherwise delete the Node "
            "and let its kubelet register it again without --provider-id, because spec.providerID "
            "is immutable",
        )
    schemes = ", ".join(case.cloud.provider_schemes)
    return ok(f"no node belongs to another cloud or manager (this provider: {schemes}://)")


async def instances(case: Case) -> CheckFinding:
    """Find nodes without an instance; report instances without a node as a detail."""
    ours = [node for node in await case.nodes() if not _is_foreign(case, node)]
    if not ours:
        return ok("there are no nodes to check")
    unlisted, lonely = match_instances(case.listing, ours)
    await _look_up(case, unlisted[:MAX_SINGLE_LOOKUPS])
    spare = [f"{count(len(lonely), 'instance')} without a node: {some(lonely)}"] if lonely else []
    if not case.without_instance:
        checked = len(ours) - len(unlisted[MAX_SINGLE_LOOKUPS:])
        return ok(f"{count(checked, 'node')} checked, each has an instance", *spare)
    lost = list(case.without_instance)
    has_id = {bool(node.provider_id) for node in ours if node.name in case.without_instance}
    return fail(
        f"{which(len(lost), len(ours), 'node', 'has', 'have')} no instance: {some(lost)}",
        *(_MISSING_INSTANCE[key] for key in sorted(has_id)),
        details=[
            *(f"{name}: {why}" for name, why in case.without_instance.items()),
            *guesses(lost, lonely),
            *spare,
        ],
    )


def match_instances(
    listing: InstanceListing | None, nodes: Sequence[Node]
) -> tuple[Sequence[Node], Sequence[str]]:
    """Return the nodes whose instance is not listed, and the names of instances without a node.

    Without a listing, return all nodes and no instance.
    """
    if listing is None:
        return nodes, ()
    ids = {instance.metadata.provider_id for instance in listing.instances}
    names = {instance.name for instance in listing.instances}
    unlisted = [
        node
        for node in nodes
        if not (node.provider_id in ids if node.provider_id else node.name in names)
    ]
    node_ids = {node.provider_id for node in nodes}
    node_names = {node.name for node in nodes if not node.provider_id}
    lonely = [
        instance.name
        for instance in listing.instances
        if instance.metadata.provider_id not in node_ids and instance.name not in node_names
    ]
    return unlisted, lonely


async def _look_up(case: Case, nodes: Iterable[Node]) -> None:
    """Look up each node's instance with a single call, because a listing may be incomplete.

    Nodes without an instance are added to `case.without_instance`.
    """
    lookup = InstanceLookup(CloudClient(case.cloud))

    async def check_node(node: Node) -> None:
        try:
            if (await lookup.state(node)).exists:
                return
            why = f"{node.provider_id} does not exist" if node.provider_id else "no match by name"
        except (errors.NotFound, errors.InvalidArgument, errors.FailedPrecondition) as error:
            why = str(error)
        case.without_instance[node.name] = why

    await run_bounded(nodes, check_node, limit=CONCURRENCY, name="instances")


def guesses(lost: Sequence[str], lonely: Sequence[str]) -> Iterator[str]:
    """Yield messages about instances whose names resemble names of nodes without an instance.

    The names may differ in their domain, case or spelling.

    Args:
        lost: names of nodes without an instance.
        lonely: names of instances without a node.
    """
    by_label = {name.partition(".")[0].lower(): name for name in lonely}
    for name in lost:
        label = name.partition(".")[0].lower()
        near = difflib.get_close_matches(label, by_label, n=1, cutoff=_ALIKE)
        if near:
            yield f"{name} may be the instance {by_label[near[0]]}"


def _is_foreign(case: Case, node: Node) -> bool:
    return NodeOwnership.for_cloud(case.cloud, "").has_foreign_id(node)


async def taints(case: Case) -> CheckFinding:
    """Report why nodes are still uninitialised."""
    waiting = [node for node in await case.nodes() if is_uninitialized(node)]
    if not waiting:
        return ok("no node is uninitialised")
    warnings = await _warnings(case)
    reasons = {node.name: _why(case, node, warnings) for node in waiting}
    late = [node.name for node in waiting if _age_s(case, node) > LATE_AFTER_S]
    message = f"{count(len(waiting), 'node')} not initialised: {some(list(reasons))}"
    details = [f"{name}: {why}" for name, why in reasons.items()]
    start = (START_ADVICE,) if _NO_DAEMON in reasons.values() else ()
    if not late:
        advice = start or (
            "wait a minute, and run this command again; then remove the causes above",
        )
        return warn(f"{message} (new)", *advice, details=details)
    if set(reasons.values()) == {_NO_DAEMON}:
        return fail(message, START_ADVICE, details=details)
    return fail(
        message, "remove the causes above; the daemon then retries", *start, details=details
    )


async def pod_cidrs(case: Case) -> CheckFinding:
    """Check that nodes have Pod CIDRs, all within `--cluster-cidr`."""
    if not provider.is_startable(case, MANIFEST):
        return ok("the route controller is disabled, so Pod ranges are not checked")
    given = case.options.cluster_cidr
    ranges = parse_ranges(given)
    nodes = await case.nodes()
    outside = [
        f"{node.name} ({cidr})"
        for node in nodes
        for cidr in node.spec.pod_cidrs or ()
        if (network := parse_cidr(cidr)) is None or not route_plan.is_managed(network, ranges)
    ]
    bare = [node.name for node in nodes if route_plan.has_no_pod_cidrs(node)]
    if outside:
        verb = "lies" if len(outside) == 1 else "lie"
        return fail(
            f"{count(len(outside), 'Pod range')} {verb} outside --cluster-cidr={given}: "
            f"{some(outside)}",
            "set --cluster-cidr to the value of kube-controller-manager; the Pod range of a node "
            "is immutable: delete the Node and let its kubelet register it again",
        )
    if bare:
        return warn(
            f"{which(len(bare), len(nodes), 'node', 'has', 'have')} no Pod range, and so no route: "
            f"{some(bare)}",
            "run kube-controller-manager with --allocate-node-cidrs, or disable routes with "
            "--configure-cloud-routes=false",
        )
    return ok(f"{count(len(nodes), 'node')}, all Pod ranges within --cluster-cidr={given}")


def _why(case: Case, node: Node, reasons: Mapping[str, str]) -> str:
    if case.is_usable("provider-ids") and _is_foreign(case, node):
        return (
            f"its provider ID {node.provider_id} belongs to another cloud or manager, which must "
            "initialise the node"
        )
    if node.name in case.without_instance:
        return f"no instance: {case.without_instance[node.name]}"
    for check in ("permissions", "cloud-config", "cloud"):
        finding = case.findings.get(check)
        if finding is not None and not finding.is_usable:
            return f"the daemon cannot initialise the node; see the finding {check}"
    if node.name in reasons:
        return f"last event: {reasons[node.name]}"
    if case.lease_holder == "":
        return _NO_DAEMON
    return "unknown; see the daemon's log"


async def _warnings(case: Case) -> Mapping[str, str]:
    """Return the message of the last Warning event about each node, by node name.

    Empty if events cannot be read.
    """
    latest: dict[str, tuple[str, str]] = {}
    try:
        async for page in case.client.resource(EVENTS).pages(field_selector=_WARNINGS):
            for event in page.items:
                when = event.last_timestamp or event.metadata.creation_timestamp or ""
                name = event.involved_object.name
                latest[name] = max(latest.get(name, ("", "")), (when, event.message))
    except KubeError:
        return {}
    return {name: message for name, (_, message) in latest.items()}


def _age_s(case: Case, node: Node) -> float:
    created = node.metadata.creation_timestamp
    if created is None:
        return 0.0
    now = clock.now()
    return (now - times.parse_time(created)).total_seconds() + (case.skew_s or 0.0)
