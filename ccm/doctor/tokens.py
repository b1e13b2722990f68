"""Bootstrap tokens: which accounts may write them, and whether a policy limits these accounts.

The right to create Secrets in `kube-system` is worth the whole cluster: one of the type
`kubernetes.io/service-account-token` gets the token of any account there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from ccm.app.machines.commands import COMMANDS
from ccm.doctor import reach, rights
from ccm.doctor.case import Case
from ccm.doctor.deployment import NAME
from ccm.doctor.finding import Finding, ok, some, warn
from ccm.doctor.rights import Need
from ccm.gardener.flags import ACCOUNT, NO_TARGET, TARGET
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.machines.tokens import NAMESPACE
from ccm.model.meta import ObjectMeta, Wire
from ccm.model.names import LABEL_APP

_RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_CREATE = Need(verb="create", resource="secrets", namespace=NAMESPACE)
_OURS = (NAME, *COMMANDS)
_ANY = "*"


class _Rule(Wire, frozen=True, kw_only=True):
    api_groups: list[str] | None = None
    resources: list[str] | None = None
    verbs: list[str] | None = None


class _Reference(Wire, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""
    namespace: str = ""


class _Role(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta
    rules: list[_Rule] | None = None

    @property
    def creates_secrets(self) -> bool:
        """Whether it grants the creation of Secrets."""
        return any(
            {"", _ANY} & set(rule.api_groups or ())
            and {"secrets", _ANY} & set(rule.resources or ())
            and {"create", _ANY} & set(rule.verbs or ())
            for rule in self.rules or ()
        )


class _Binding(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta
    role_ref: _Reference = _Reference()
    subjects: list[_Reference] | None = None


class _OperationRule(Wire, frozen=True, kw_only=True):
    resources: list[str] | None = None
    operations: list[str] | None = None


class _Constraints(Wire, frozen=True, kw_only=True):
    resource_rules: list[_OperationRule] | None = None


class _Condition(Wire, frozen=True, kw_only=True):
    expression: str = ""


class _PolicySpec(Wire, frozen=True, kw_only=True):
    failure_policy: str = "Fail"
    match_constraints: _Constraints | None = None
    match_conditions: list[_Condition] | None = None


class _Policy(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: _PolicySpec = _PolicySpec()

    @property
    def limits_secrets(self) -> bool:
        """Whether no Secret can be written past it."""
        rules = self.spec.match_constraints and self.spec.match_constraints.resource_rules
        seen = {
            operation
            for rule in rules or ()
            if {"secrets", _ANY} & set(rule.resources or ())
            for operation in rule.operations or ()
        }
        return self.spec.failure_policy == "Fail" and (_ANY in seen or {"CREATE", "UPDATE"} <= seen)

    @property
    def accounts(self) -> set[str]:
        """The users that its conditions name."""
        texts = (one.expression for one in self.spec.match_conditions or ())
        return {user for text in texts for user in re.findall(r"""['"](system:[^'"]+)['"]""", text)}


class _PolicyBindingSpec(Wire, frozen=True, kw_only=True):
    policy_name: str = ""
    validation_actions: list[str] | None = None
    match_resources: dict[str, Any] | None = None


class _PolicyBinding(Wire, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: _PolicyBindingSpec = _PolicyBindingSpec()


class _List(Wire, frozen=True, kw_only=True):
    items: list[msgspec.Raw] | None = None


T = TypeVar("T", _Role, _Binding, _Policy, _PolicyBinding)


async def bootstrap_tokens(case: Case) -> Finding:
    """Find accounts of ours that may create Secrets, and the policies about them."""
    if case.options.target_kubeconfig == NO_TARGET:
        return ok("no cluster is joined")
    client = await reach.at(case, TARGET)
    holders = await _holders(case, client)
    if not holders:
        return ok(f"no account of ours may create Secrets in {NAMESPACE}")
    limited = await _limited(client)
    if not (bare := [one for one in holders if one not in limited]):
        return ok(f"an admission policy limits the Secrets of {some(holders)}")
    return warn(
        f"{some(bare)} may create any Secret in {NAMESPACE}, which is as much as cluster-admin",
        "where user data of a class have <<BOOTSTRAP_TOKEN>>: apply the component "
        "bootstrap-tokens, or upgrade the chart, which bring a ValidatingAdmissionPolicy along",
        f"else take the right away: kubectl -n {NAMESPACE} get rolebindings -o wide",
    )


async def _holders(case: Case, client: Client) -> Sequence[str]:
    """The accounts of ours that may create Secrets; of an administrator, those of our roles."""
    user = case.account or case.user.username
    if user.startswith(rights.PREFIX):
        # Our own account asks in its own name: it may do without the right to ask about others.
        asked = {user: case.account}
        if case.options.use_service_account_credentials:
            machines = rights.account(ACCOUNT)
            asked[machines] = machines
        return [one for one in asked if await rights.allowed(client, _CREATE, asked[one])]
    granting = {
        one.metadata.name
        for one in await _items(client, f"{_RBAC}/roles", _Role)
        if one.creates_secrets
    }
    found = (
        f"{rights.PREFIX}{subject.namespace}:{subject.name}"
        for binding in await _items(client, f"{_RBAC}/rolebindings", _Binding)
        if (binding.metadata.labels or {}).get(LABEL_APP) in _OURS
        and (binding.role_ref.kind, binding.role_ref.name in granting) == ("Role", True)
        for subject in binding.subjects or ()
        if subject.kind == "ServiceAccount"
    )
    return list(dict.fromkeys(found))


async def _limited(client: Client) -> set[str]:
    """The users whose Secrets a policy limits that is bound, and in force for all of them."""
    policies = await _items(client, f"{_ADMISSION}/validatingadmissionpolicies", _Policy)
    bindings = await _items(
        client, f"{_ADMISSION}/validatingadmissionpolicybindings", _PolicyBinding
    )
    bound = {
        one.spec.policy_name
        for one in bindings
        if "Deny" in (one.spec.validation_actions or ()) and one.spec.match_resources is None
    }
    return {
        user
        for one in policies
        if one.metadata.name in bound and one.limits_secrets
        for user in one.accounts
    }


async def _items(client: Client, path: str, kind: type[T]) -> Sequence[T]:
    """All objects at a path; none where the API server does not know them."""
    try:
        answer = await client.raw("GET", path)
    except errors.NotFound:
        return []
    found = msgspec.json.decode(answer, type=_List)
    return [msgspec.json.decode(one, type=kind) for one in found.items or ()]
