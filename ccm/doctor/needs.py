"""What the daemon has to be allowed to do: one table, by controller and flag. Pure.

The shipped RBAC holds these rules and no others, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ccm.app import names
from ccm.app.accounts import NAMESPACE as ACCOUNTS_NAMESPACE
from ccm.app.options import Options

_COORDINATION = "coordination.k8s.io"


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
        users: who needs it, for people.
    """

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""
    account: str = ""
    users: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{where}"


def needs(options: Options) -> list[Need]:
    """Everything that the daemon needs with these flags, each once, in a stable order."""
    found: dict[tuple[str, ...], Need] = {}
    for need in _all(options):
        key = (need.group, need.resource, need.verb, need.namespace, need.name, need.account)
        known = found.get(key)
        users = (*(known.users if known else ()), *need.users)
        found[key] = replace(need, users=tuple(dict.fromkeys(users)))
    return list(found.values())


def _all(options: Options) -> Iterator[Need]:
    yield from _rules(("list", "watch"), "nodes", users=("every controller",))
    yield from _rules(("create", "patch"), "events", users=("every controller",))
    for controller in names.enabled(options.controllers):
        if controller is names.ROUTE and not options.configure_cloud_routes:
            continue
        account = controller.client if options.use_service_account_credentials else ""
        for verbs, resource in _BY_CONTROLLER[controller]:
            yield from _rules(verbs, resource, account=account, users=(controller.name,))
    if names.SERVICE in names.enabled(options.controllers):
        # The shared caches belong to the daemon itself, whoever reads them.
        yield from _rules(("list", "watch"), "services", users=(names.SERVICE.name,))
    if options.leader_elect:
        yield from _rules(
            ("get", "create", "update", "watch"),
            "leases",
            group=_COORDINATION,
            namespace=options.leader_elect_resource_namespace,
            users=("leader election",),
        )
    if options.use_service_account_credentials:
        yield from _accounts()


_BY_CONTROLLER: dict[names.Controller, Sequence[tuple[Sequence[str], str]]] = {
    names.NODE: ((("get", "patch"), "nodes"), (("patch",), "nodes/status")),
    names.NODE_LIFECYCLE: ((("get", "patch", "delete"), "nodes"),),
    names.SERVICE: ((("get",), "services"), (("patch",), "services/status")),
    names.ROUTE: ((("patch",), "nodes/status"),),
}
"""What each controller does beyond reading the shared caches."""


def _accounts() -> Iterator[Need]:
    users = ("--use-service-account-credentials",)
    yield from _rules(("create",), "serviceaccounts", namespace=ACCOUNTS_NAMESPACE, users=users)
    yield from _rules(
        ("create",), "serviceaccounts/token", namespace=ACCOUNTS_NAMESPACE, users=users
    )


def _rules(
    verbs: Sequence[str],
    resource: str,
    *,
    group: str = "",
    namespace: str = "",
    account: str = "",
    users: tuple[str, ...],
) -> Iterator[Need]:
    for verb in verbs:
        yield Need(
            verb=verb,
            resource=resource,
            group=group,
            namespace=namespace,
            account=account,
            users=users,
        )
