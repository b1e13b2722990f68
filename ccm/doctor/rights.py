"""Whether the API server lets the daemon do what it has to."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ccm.app.clients import ACCOUNTS_NAMESPACE
from ccm.app.election import migration_plan
from ccm.app.provider import Misconfigured
from ccm.base.tasks import bounded
from ccm.doctor.case import Case
from ccm.doctor.finding import Finding, fail, ok, some, warn
from ccm.doctor.needs import Need, needs
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.model.meta import Wire

CONCURRENCY = 8
"""Questions asked at once."""

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
"""Every Pod has this variable (Kubernetes)."""

PREFIX = "system:serviceaccount:"
"""Of the users that service accounts are (Kubernetes)."""

_PATH = "/apis/authorization.k8s.io/v1"


class _Status(Wire, frozen=True, kw_only=True):
    allowed: bool = False


class _Review(Wire, frozen=True, kw_only=True):
    status: _Status = _Status()


async def permissions(case: Case) -> Finding:
    """Ask about every verb that the daemon needs with these flags."""
    wanted = _wanted(case)
    missing: list[Need] = []
    refusals: list[str] = []

    async def ask(need: Need) -> None:
        try:
            if not await allowed(case.client, need, subject(case, need)):
                missing.append(need)
        except errors.Forbidden as error:
            refusals.append(str(error))

    await bounded(wanted, ask, limit=CONCURRENCY, name="permissions")
    who = case.account or case.user.username or "the user of the kubeconfig"
    if missing:
        return _missing(sorted(missing, key=wanted.index), len(wanted), who)
    if refusals:
        return _not_told(case, refusals[0])
    return ok(f"all {len(wanted)} that the daemon needs are granted to {who}")


def _wanted(case: Case) -> list[Need]:
    options = case.options
    try:
        plan = migration_plan(options)
    except Misconfigured:
        plan = None  # the daemon says so when it starts
    # In a Pod the daemon asks about its callers in its own name; elsewhere it is told in whose.
    own = bool(case.account or case.environ.get(IN_CLUSTER))
    own = own and not options.authentication_kubeconfig
    found = needs(options, migrated=plan.leader_name if plan else "", reviews=own)
    # Another cluster has to be asked itself, and an optional right is looked at with the classes.
    return [need for need in found if not (need.cluster or need.optional)]


def _missing(missing: list[Need], wanted: int, who: str) -> Finding:
    verb = "is" if len(missing) == 1 else "are"
    return fail(
        f"{len(missing)} of {wanted} {verb} missing: {some([str(need) for need in missing])}",
        f"apply manifests/rbac.yaml, or grant this to {_grantees(missing, who)}",
        details=[
            f"{need}: for {' and '.join(need.users)}"
            + (f", as {account(need.account)}" if need.account else "")
            for need in missing
        ],
    )


async def allowed(client: Client, need: Need, user: str) -> bool:
    """Return whether a user may do this; empty: our own."""
    plural = "subjectaccessreviews" if user else "selfsubjectaccessreviews"
    spec: dict[str, object] = {"resourceAttributes": _attributes(need)}
    if user:
        spec |= {"user": user, "groups": _groups(user)}
    body = msgspec.json.encode({"spec": spec})
    answer = await client.raw("POST", f"{_PATH}/{plural}", body=body)
    return msgspec.json.decode(answer, type=_Review).status.allowed


def subject(case: Case, need: Need) -> str:
    """Return the user that has to be allowed; empty: our own."""
    return account(need.account) if need.account else case.account


def _attributes(need: Need) -> Mapping[str, str]:
    resource, _, subresource = need.resource.partition("/")
    given = {
        "verb": need.verb,
        "group": need.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": need.namespace,
        "name": need.name,
    }
    return {key: value for key, value in given.items() if value}


def account(name: str) -> str:
    """Return the user that a service account of a controller is."""
    return f"{PREFIX}{ACCOUNTS_NAMESPACE}:{name}"


def _groups(subject: str) -> list[str]:
    """The groups that Kubernetes puts a user into by itself."""
    groups = ["system:authenticated"]
    if subject.startswith(PREFIX):
        namespace = subject.removeprefix(PREFIX).partition(":")[0]
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    return groups


def _grantees(missing: list[Need], who: str) -> str:
    found = dict.fromkeys(account(need.account) if need.account else who for need in missing)
    return some(list(found))


def _not_told(case: Case, refusal: str) -> Finding:
    if case.account or case.options.use_service_account_credentials:
        return warn(
            "we may not ask about the permissions of others",
            "run this as an administrator, or in the daemon's own name without --as",
            details=[refusal],
        )
    return fail(
        "we may not even ask what we may do",
        "bind system:basic-user to system:authenticated, as Kubernetes does by default",
        details=[refusal],
    )
