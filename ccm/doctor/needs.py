"""What the daemon has to be allowed to do: by controller, as its manifest says, and by
flag. Pure.

The shipped RBAC holds these rules and no others, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ccm.app.clients import ACCOUNTS_NAMESPACE
from ccm.app.clusters import OWN, counts_deletions, elsewhere
from ccm.app.options import Options, names
from ccm.app.serving import trust
from ccm.gardener.flags import CONTROL
from ccm.kube.events import DEFAULT_NAMESPACE
from ccm.runtime import deletions
from ccm.runtime.manifest import Manifest

SYSTEM_NAMESPACE = "kube-system"
"""Where Kubernetes keeps the config map that says whom extensions may believe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One verb on one resource.

    Attributes:
        verb: as RBAC has it.
        resource: plural, with its subresource behind a slash.
        group: API group; empty for the core group.
        namespace: where; empty everywhere, or for a resource without namespaces.
        name: of the one object; empty for all.
        account: the service account that needs it when controllers have their own; empty:
            the daemon itself.
        cluster: what the cluster is to controllers that is not our own; empty: our own.
        optional: whether only some objects make it necessary.
        users: who needs it, for people.
    """

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""
    account: str = ""
    cluster: str = ""
    optional: bool = False
    users: tuple[str, ...] = ()

    def __str__(self) -> str:
        which = f"/{self.name}" if self.name else ""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{which}{where}"


def needs(options: Options, *, migrated: str = "", reviews: bool = False) -> list[Need]:
    """Everything that the daemon needs with these flags, each once, in a stable order.

    Args:
        options: the flags.
        migrated: name of the second lease, with leader migration; empty without.
        reviews: whether it asks about the callers of its endpoints in its own name.
    """
    found: dict[Need, tuple[str, ...]] = {}
    for users, need in _all(options, migrated, reviews):
        found[need] = (*found.get(need, ()), users)
    return [replace(need, users=tuple(dict.fromkeys(users))) for need, users in found.items()]


def _all(options: Options, migrated: str, reviews: bool) -> Iterator[tuple[str, Need]]:
    """Who needs it, and what."""
    running = [one for one in names.enabled(options.controllers) if not one.turned_off(options)]
    for manifest in running:
        for user, need in _controller(options, manifest):
            for role in manifest.roles(options, need.resource, need.namespace):
                yield user, _at(role, need, options)
    yield from _events(options, running)
    if counts_deletions(options):
        yield from _deletions(options)
    if options.leader_elect:
        yield from _leases(options, migrated)
    if options.use_service_account_credentials:
        yield from _accounts(options)
    if options.persistence_config:
        yield "--persistence-config", Need(verb="get", resource="namespaces", name=SYSTEM_NAMESPACE)
    if reviews:
        yield from _reviews(options)


def _controller(options: Options, manifest: Manifest[Any]) -> Iterator[tuple[str, Need]]:
    # The shared caches belong to the daemon itself, whoever acts for the controller.
    for resource in manifest.follows:
        for verb in ("list", "watch"):
            yield manifest.name, Need(verb=verb, resource=resource)
    account = manifest.client if options.use_service_account_credentials else ""
    for verb, resource in manifest.acts:
        group = _group(manifest, resource)
        yield manifest.name, Need(verb=verb, resource=resource, group=group, account=account)
    for verb, resource, name in manifest.named:
        group = _group(manifest, resource)
        need = Need(verb=verb, resource=resource, group=group, name=name, account=account)
        yield manifest.name, need
    local = [(*each, False) for each in manifest.local(options)]
    optional = [(*each, True) for each in manifest.optional]
    for verb, resource, namespace, is_optional in (*local, *optional):
        yield (
            manifest.name,
            Need(
                verb=verb,
                resource=resource,
                group=_group(manifest, resource),
                namespace=namespace,
                account="" if verb in ("list", "watch") else account,
                optional=is_optional,
            ),
        )


def _group(manifest: Manifest[Any], resource: str) -> str:
    return manifest.groups.get(resource.partition("/")[0], "")


def _at(role: str, need: Need, options: Options) -> Need:
    """The need in the cluster that is so to a controller; there nobody has an account of theirs."""
    return replace(need, cluster=role, account="") if role in elsewhere(options) else need


def _events(options: Options, running: Sequence[Manifest[Any]]) -> Iterator[tuple[str, Need]]:
    """Where the objects are that events are about: those of machines are in one namespace."""
    is_wide = any(OWN in one.roles(options, "events", "") for one in running)
    places = {(OWN, "" if is_wide else options.leader_elect_resource_namespace)}
    machines = [
        one for one in running if CONTROL in one.roles(options, "events", options.namespace)
    ]
    if machines:
        cluster = CONTROL if CONTROL in elsewhere(options) else OWN
        if cluster or not is_wide:
            places.add((cluster, options.namespace))
            # Where events about objects without a namespace are, such as CRDs.
            places |= {(cluster, DEFAULT_NAMESPACE) for one in machines if one.named}
    for cluster, namespace in sorted(places):
        for verb in ("create", "patch"):
            need = Need(verb=verb, resource="events", namespace=namespace, cluster=cluster)
            yield "events", need


def _leases(options: Options, migrated: str) -> Iterator[tuple[str, Need]]:
    lease = Need(
        verb="create",
        resource="leases",
        group="coordination.k8s.io",
        namespace=options.leader_elect_resource_namespace,
    )
    yield "leader election", lease
    for user, name in (
        ("leader election", options.leader_elect_resource_name),
        ("leader migration", migrated),
    ):
        for verb in ("get", "update", "watch") if name else ():
            yield user, replace(lease, verb=verb, name=name)


def _deletions(options: Options) -> Iterator[tuple[str, Need]]:
    record = Need(
        verb="create", resource="configmaps", namespace=options.leader_elect_resource_namespace
    )
    yield "the record of deletions", record
    for verb in ("get", "patch"):
        yield "the record of deletions", replace(record, verb=verb, name=deletions.NAME)


def _accounts(options: Options) -> Iterator[tuple[str, Need]]:
    user = "--use-service-account-credentials"
    account = Need(verb="create", resource="serviceaccounts", namespace=ACCOUNTS_NAMESPACE)
    yield user, account
    for manifest in names.enabled(options.controllers):
        yield user, replace(account, resource="serviceaccounts/token", name=manifest.client)


def _reviews(options: Options) -> Iterator[tuple[str, Need]]:
    if not options.secure_port:
        return
    user = "the HTTPS endpoints"
    for group, reviews in (
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
    ):
        yield user, Need(verb="create", resource=reviews, group=group)
    if not options.authentication_skip_lookup:
        maps = Need(verb="get", resource="configmaps", namespace=SYSTEM_NAMESPACE)
        yield user, replace(maps, name=trust.CONFIG_MAP)
