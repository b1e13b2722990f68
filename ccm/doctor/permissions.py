"""The permissions that the daemon needs, by controller and flag, and checks of the permissions.

The RBAC rules in `manifests` match `needed_permissions` exactly; a test compares them.

Bootstrap tokens need the permission to create Secrets in `kube-system`, which is equivalent to
cluster-admin: Kubernetes writes the token of a service account into a Secret of type
`kubernetes.io/service-account-token`, and the Secret may name any service account in its namespace.
`bootstrap_tokens` checks whether a policy restricts the accounts with that permission.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ccm.app import delegated_auth
from ccm.app.clients import ACCOUNTS_NAMESPACE, OWN_CLUSTER, counts_deletions, remote_kubeconfigs
from ccm.app.election import load_migration
from ccm.app.machines.commands import COMMANDS
from ccm.app.options import Options, controllers
from ccm.app.provider import Misconfigured
from ccm.base.tasks import run_bounded
from ccm.doctor import reach
from ccm.doctor.case import (
    Case,
    CheckFinding,
    fail,
    get_field,
    get_text_field,
    items,
    ok,
    some,
    warn,
)
from ccm.doctor.daemons import NAME
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.kube.events import DEFAULT_NAMESPACE
from ccm.machines.flags import ACCOUNT, CONTROL, NO_TARGET, TARGET
from ccm.machines.tokens import NAMESPACE
from ccm.model.names import LABEL_APP
from ccm.runtime import deletions
from ccm.runtime.manifest import Manifest

CONCURRENCY = 8
"""Maximum number of concurrent access reviews."""

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
"""Environment variable that Kubernetes sets in every container."""

PREFIX = "system:serviceaccount:"
"""Prefix of service accounts' user names in Kubernetes."""

_PATH = "/apis/authorization.k8s.io/v1"


async def permissions(case: Case) -> CheckFinding:
    """Check that the daemon's user has every permission that the daemon needs with these flags."""
    wanted = _wanted(case)
    missing: list[Permission] = []
    refusals: list[str] = []

    async def ask(need: Permission) -> None:
        try:
            if not await is_allowed(case.client, need, reviewed_user(case, need)):
                missing.append(need)
        except errors.Forbidden as error:
            refusals.append(str(error))

    await run_bounded(wanted, ask, limit=CONCURRENCY, name="permissions")
    shown_user = case.impersonated_user or case.user.username or "the user of the kubeconfig"
    if missing:
        missing.sort(key=wanted.index)
        verb = "is" if len(missing) == 1 else "are"
        accounts = [
            service_account_user(need.account) if need.account else shown_user for need in missing
        ]
        return fail(
            f"{len(missing)} of {len(wanted)} permissions {verb} missing: "
            f"{some(list(map(str, missing)))}",
            "apply manifests/rbac.yaml and the components of your controllers in manifests, "
            f"or grant the missing permissions to {some(list(dict.fromkeys(accounts)))}",
            details=[
                f"{need}: for {' and '.join(need.users)}"
                + (f", as {service_account_user(need.account)}" if need.account else "")
                for need in missing
            ],
        )
    if refusals and (case.impersonated_user or case.options.use_service_account_credentials):
        return warn(
            "no permission to create subjectaccessreviews, so other users cannot be checked",
            "run doctor as a cluster administrator, or with the daemon's credentials and without "
            "--as",
            details=refusals[:1],
        )
    if refusals:
        return fail(
            "no permission to create selfsubjectaccessreviews, so permissions cannot be checked",
            "bind system:basic-user to system:authenticated, as Kubernetes does by default",
            details=refusals[:1],
        )
    return ok(f"all {len(wanted)} permissions that the daemon needs are granted to {shown_user}")


def _wanted(case: Case) -> list[Permission]:
    options = case.options
    try:
        plan = load_migration(options)
    except Misconfigured:
        plan = None  # the daemon reports the error when it starts
    # The daemon sends reviews of callers with its own account if it runs in a Pod without
    # --authentication-kubeconfig.
    own = bool(case.impersonated_user or case.environ.get(IN_CLUSTER))
    own = own and not options.authentication_kubeconfig
    all_needs = needed_permissions(options, migrated=plan.leader_name if plan else "", reviews=own)
    # Access reviews cannot cover other clusters. The check machine-classes covers optional
    # permissions.
    return [need for need in all_needs if not (need.cluster or need.optional)]


async def is_allowed(client: Client, need: Permission, user: str) -> bool:
    """Return whether a user has a permission; an empty user means the client's own user."""
    plural = "subjectaccessreviews" if user else "selfsubjectaccessreviews"
    resource, _, subresource = need.resource.partition("/")
    attributes = {
        "verb": need.verb,
        "group": need.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": need.namespace,
        "name": need.name,
    }
    spec: dict[str, object] = {
        "resourceAttributes": {key: value for key, value in attributes.items() if value}
    }
    if user:
        # Groups that Kubernetes adds to every user.
        groups = ["system:authenticated"]
        if user.startswith(PREFIX):
            namespace = user.removeprefix(PREFIX).partition(":")[0]
            groups += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        spec |= {"user": user, "groups": groups}
    body = msgspec.json.encode({"spec": spec})
    answer = await client.raw("POST", f"{_PATH}/{plural}", body=body)
    return get_field(msgspec.json.decode(answer), "status.allowed") is True


def reviewed_user(case: Case, need: Permission) -> str:
    """Return the user that needs the permission; empty = the command's own user."""
    return service_account_user(need.account) if need.account else case.impersonated_user


def service_account_user(name: str) -> str:
    """Return the user name of a controller's service account."""
    return f"{PREFIX}{ACCOUNTS_NAMESPACE}:{name}"


SYSTEM_NAMESPACE = "kube-system"
"""Namespace of the ConfigMap extension-apiserver-authentication; the UID of the namespace
identifies a cluster.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Permission for one verb on one resource.

    Attributes:
        verb: RBAC verb.
        resource: plural name of the resource; a subresource follows after a slash.
        group: API group; empty = the core group.
        namespace: namespace; empty = all namespaces, or a cluster-scoped resource.
        name: name of the only object; empty = all objects.
        account: controller's service account that needs the permission, with
            `--use-service-account-credentials`; empty = the daemon's own account.
        cluster: other cluster for which the permission is needed, such as `CONTROL` or `TARGET`;
            empty = the daemon's cluster.
        optional: whether the daemon needs the permission for some objects only.
        users: controllers, flags and features that need the permission.
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


def needed_permissions(
    options: Options, *, migrated: str = "", reviews: bool = False
) -> list[Permission]:
    """Return the permissions that the daemon needs with these flags.

    The list has no duplicates, and its order is stable.

    Args:
        options: the daemon's flags.
        migrated: name of the second Lease for leader migration; empty = no migration.
        reviews: whether the daemon's own account creates the TokenReviews and SubjectAccessReviews
            for requests to the daemon.
    """
    users_by_need: dict[Permission, tuple[str, ...]] = {}
    for users, need in _all(options, migrated, reviews):
        users_by_need[need] = (*users_by_need.get(need, ()), users)
    return [
        replace(need, users=tuple(dict.fromkeys(users))) for need, users in users_by_need.items()
    ]


def _all(options: Options, migrated: str, reviews: bool) -> Iterator[tuple[str, Permission]]:
    """Yield pairs of a user (see `Permission.users`) and a permission; permissions may repeat."""
    running = [
        candidate
        for candidate in controllers.enabled(options.controllers)
        if not candidate.disabled_by(options)
    ]
    for manifest in running:
        for user, need in _controller(options, manifest):
            for role in manifest.roles(options, need.resource, need.namespace):
                yield user, _at(role, need, options)
    yield from _events(options, running)
    if counts_deletions(options):
        yield from _deletions(options)
    if options.leader_elect:
        yield from _leases(options, migrated, running)
    if options.use_service_account_credentials:
        yield from _accounts(options)
    if options.uses_storage:
        yield from _persistence(options)
    if reviews:
        yield from _reviews(options)


def _controller(options: Options, manifest: Manifest[Any]) -> Iterator[tuple[str, Permission]]:
    # Shared informers use the daemon's own account even if controllers have accounts of their own.
    for resource in manifest.watched:
        for verb in ("list", "watch"):
            group = _group(manifest, resource)
            yield manifest.name, Permission(verb=verb, resource=resource, group=group)
    account = manifest.client if options.use_service_account_credentials else ""
    for verb, resource in manifest.permissions:
        group = _group(manifest, resource)
        yield manifest.name, Permission(verb=verb, resource=resource, group=group, account=account)
    for verb, resource, name in manifest.named_permissions:
        group = _group(manifest, resource)
        need = Permission(verb=verb, resource=resource, group=group, name=name, account=account)
        yield manifest.name, need
    local = [(*row, False) for row in manifest.namespaced_permissions(options)]
    optional = [(*row, True) for row in manifest.optional_permissions]
    for verb, resource, namespace, is_optional in (*local, *optional):
        yield (
            manifest.name,
            Permission(
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


def _at(role: str, need: Permission, options: Options) -> Permission:
    """Return the permission for the cluster with that role.

    In other clusters, controllers have no service accounts of their own.
    """
    return replace(need, cluster=role, account="") if role in remote_kubeconfigs(options) else need


def _events(options: Options, running: Sequence[Manifest[Any]]) -> Iterator[tuple[str, Permission]]:
    """Yield the permissions for events; events about Machines are in the Machines' namespace."""
    is_wide = any(OWN_CLUSTER in manifest.roles(options, "events", "") for manifest in running)
    places = {(OWN_CLUSTER, "" if is_wide else options.leader_elect_resource_namespace)}
    machines = [
        manifest
        for manifest in running
        if CONTROL in manifest.roles(options, "events", options.namespace)
    ]
    if machines:
        cluster = CONTROL if CONTROL in remote_kubeconfigs(options) else OWN_CLUSTER
        if cluster or not is_wide:
            places.add((cluster, options.namespace))
            # Events about cluster-scoped objects, such as CRDs, are in the default namespace.
            places |= {
                (cluster, DEFAULT_NAMESPACE) for manifest in machines if manifest.named_permissions
            }
    for cluster, namespace in sorted(places):
        for verb in ("create", "patch"):
            need = Permission(verb=verb, resource="events", namespace=namespace, cluster=cluster)
            yield "events", need


def _leases(
    options: Options, migrated: str, running: Sequence[Manifest[Any]]
) -> Iterator[tuple[str, Permission]]:
    lease = Permission(verb="create", resource="leases", group="coordination.k8s.io")
    own = options.leader_elect_resource_namespace
    needed = [("leader election", own, options.leader_elect_resource_name)]
    if migrated:
        needed.append(("leader migration", own, migrated))
    needed += [
        (manifest.name, shared.namespace, shared.name)
        for manifest in running
        if (shared := manifest.lease(options)) is not None
    ]
    for user, namespace, name in needed:
        yield user, replace(lease, namespace=namespace)
        for verb in ("get", "update", "watch"):
            yield user, replace(lease, verb=verb, namespace=namespace, name=name)


def _deletions(options: Options) -> Iterator[tuple[str, Permission]]:
    record = Permission(
        verb="create", resource="configmaps", namespace=options.leader_elect_resource_namespace
    )
    yield "the record of deletions", record
    for verb in ("get", "patch"):
        yield "the record of deletions", replace(record, verb=verb, name=deletions.CONFIG_MAP_NAME)


def _accounts(options: Options) -> Iterator[tuple[str, Permission]]:
    user = "--use-service-account-credentials"
    account = Permission(verb="create", resource="serviceaccounts", namespace=ACCOUNTS_NAMESPACE)
    yield user, account
    for manifest in controllers.enabled(options.controllers):
        yield user, replace(account, resource="serviceaccounts/token", name=manifest.client)


def _persistence(options: Options) -> Iterator[tuple[str, Permission]]:
    from ccm.app.persistence import stored_in_cluster  # needed only with the flag

    user = "--persistence-config" if options.persistence_config else "--journal"
    yield user, Permission(verb="get", resource="namespaces", name=SYSTEM_NAMESPACE)
    own = options.leader_elect_resource_namespace
    for resource, namespace in sorted(stored_in_cluster(options.persistence_config, own)):
        deletes = ("delete",) if resource == "secrets" else ()
        for verb in ("get", "list", "create", "update", *deletes):
            yield user, Permission(verb=verb, resource=resource, namespace=namespace)


def _reviews(options: Options) -> Iterator[tuple[str, Permission]]:
    if not options.secure_port:
        return
    user = "the HTTPS endpoints"
    for group, reviews in (
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
    ):
        yield user, Permission(verb="create", resource=reviews, group=group)
    if not options.authentication_skip_lookup:
        maps = Permission(verb="get", resource="configmaps", namespace=SYSTEM_NAMESPACE)
        yield user, replace(maps, name=delegated_auth.CONFIG_MAP)


# --- the right to create bootstrap tokens -------------------------------------------------------

_ANY = "*"
_CREATE = Permission(verb="create", resource="secrets", namespace=NAMESPACE)
_RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


async def bootstrap_tokens(case: Case) -> CheckFinding:
    """Find accounts of the daemon that may create Secrets without a restricting policy."""
    if case.options.target_kubeconfig == NO_TARGET:
        return ok("machines join no cluster (--target-kubeconfig=none)")
    client = await reach.client_of_role(case, TARGET)
    holders = await _accounts_with_secret_create(case, client)
    if not holders:
        return ok(f"no account of the daemon may create Secrets in {NAMESPACE}")
    limited = await _restricted_users(client)
    if not (bare := [holder for holder in holders if holder not in limited]):
        return ok(f"an admission policy restricts the Secrets of {some(holders)}")
    return warn(
        f"{some(bare)} may create any Secret in {NAMESPACE}, which is equivalent to cluster-admin",
        "if the userData of a class contains <<BOOTSTRAP_TOKEN>>: apply the component "
        "bootstrap-tokens, or upgrade the chart; both have a ValidatingAdmissionPolicy",
        f"otherwise remove the permission: kubectl -n {NAMESPACE} get rolebindings -o wide",
    )


async def _accounts_with_secret_create(case: Case, client: Client) -> Sequence[str]:
    """Return the daemon's accounts that may create Secrets in the namespace of bootstrap tokens.

    If the user of `--as`, or else the command's user, is a service account, it counts as an account
    of the daemon, and access reviews decide. For other users, the role bindings with the daemon's
    label decide.
    """
    user = case.impersonated_user or case.user.username
    if user.startswith(PREFIX):
        # A review of the own user needs no permission to create subjectaccessreviews.
        asked = {user: case.impersonated_user}
        if case.options.use_service_account_credentials:
            asked[service_account_user(ACCOUNT)] = service_account_user(ACCOUNT)
        return [
            user_name for user_name in asked if await is_allowed(client, _CREATE, asked[user_name])
        ]
    granting = {
        get_text_field(role, "metadata.name")
        for role in await _known(client, f"{_RBAC}/roles")
        if any(
            _has(rule, "apiGroups", "")
            and _has(rule, "resources", "secrets")
            and _has(rule, "verbs", "create")
            for rule in role.get("rules") or ()
        )
    }
    holders = (
        f"{PREFIX}{subject.get('namespace', '')}:{subject.get('name', '')}"
        for binding in await _known(client, f"{_RBAC}/rolebindings")
        if (get_field(binding, "metadata.labels") or {}).get(LABEL_APP) in (NAME, *COMMANDS)
        and get_text_field(binding, "roleRef.kind") == "Role"
        and get_text_field(binding, "roleRef.name") in granting
        for subject in binding.get("subjects") or ()
        if subject.get("kind") == "ServiceAccount"
    )
    return list(dict.fromkeys(holders))


async def _restricted_users(client: Client) -> set[str]:
    """Return the users for whom a policy restricts writes of Secrets, in all namespaces."""
    policies, bindings = await _known(client, _POLICIES), await _known(client, _BINDINGS)
    bound = {
        get_text_field(item, "spec.policyName")
        for item in bindings
        if "Deny" in (get_field(item, "spec.validationActions") or ())
        and get_field(item, "spec.matchResources") is None
    }
    users = set[str]()
    for item in policies:
        rules = get_field(item, "spec.matchConstraints.resourceRules") or ()
        about = [rule for rule in rules if _has(rule, "resources", "secrets")]
        # Whether the policy covers every write of a Secret.
        is_whole = all(
            any(_has(rule, "operations", operation) for rule in about)
            for operation in ("CREATE", "UPDATE")
        )
        fails_closed = (get_field(item, "spec.failurePolicy") or "Fail") == "Fail"
        if get_text_field(item, "metadata.name") in bound and is_whole and fails_closed:
            for condition in get_field(item, "spec.matchConditions") or ():
                expression = get_text_field(condition, "expression")
                users.update(re.findall(r"""['"](system:[^'"]+)['"]""", expression))
    return users


def _has(rule: Any, field: str, value: str) -> bool:
    """Return whether a list field of a rule contains the value or the wildcard."""
    return bool({value, _ANY} & set(rule.get(field) or ()))


async def _known(client: Client, path: str) -> Sequence[Any]:
    """Return the objects at a path; empty if the API server lacks the resource."""
    try:
        return await items(client, path)
    except errors.NotFound:
        return ()
