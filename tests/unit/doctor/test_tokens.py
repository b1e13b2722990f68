"""What the doctor says of the right to create Secrets, and of the policy that limits it."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ccm.app import options
from ccm.doctor.case import Case, User
from ccm.doctor.finding import Finding, Verdict
from ccm.doctor.tokens import bootstrap_tokens
from ccm.kube.errors import Forbidden, NotFound
from tests.manifests import shipped

ADMINISTRATOR = "kubernetes-admin"
ACCOUNT = shipped.USER
RBAC = shipped.objects(shipped.TOKENS / "rbac.yaml")
POLICY, BINDING = shipped.objects(shipped.TOKENS_POLICY)
FORBIDDEN = Forbidden(status=403, reason="Forbidden", message="no policies for you")
ABSENT = NotFound(status=404, reason="NotFound", message="no such thing")


async def told(
    *objects: dict[str, Any],
    user: str = ADMINISTRATOR,
    allowed: bool = True,
    flags: tuple[str, ...] = (),
    refusal: Exception | None = None,
) -> Finding:
    """The finding where these objects are there; `refusal` answers questions about policies."""
    by_plural = {"roles": "Role", "rolebindings": "RoleBinding"}
    by_plural |= {"validatingadmissionpolicies": shipped.POLICY}
    by_plural |= {"validatingadmissionpolicybindings": f"{shipped.POLICY}Binding"}

    async def raw(method: str, path: str, *, body: bytes = b"") -> bytes:
        plural = path.rpartition("/")[2]
        if method == "POST":
            spec = msgspec.json.decode(body)["spec"]
            assert plural.startswith("self") is (spec.get("user") is None)
            return msgspec.json.encode({"status": {"allowed": allowed}})
        if refusal is not None and "admission" in path:
            raise refusal
        return msgspec.json.encode(
            {"items": [one for one in objects if one["kind"] == by_plural[plural]]}
        )

    case = Case(options=options.parse(["--cloud-provider=sim", *flags]), environ={})
    case.user = User(username=user)
    client: Any = SimpleNamespace(raw=raw)
    case.client = client
    return await bootstrap_tokens(case)


def changed(obj: dict[str, Any], **spec: Any) -> dict[str, Any]:
    found = copy.deepcopy(obj)
    found["spec"] |= spec
    return found


async def test_a_role_without_the_policy_is_as_good_as_cluster_admin() -> None:
    found = await told(*RBAC)

    assert found.verdict is Verdict.WARN
    assert found.found.startswith(f"{ACCOUNT} may create any Secret in kube-system")
    assert "the component bootstrap-tokens" in found.advice[0]


async def test_with_the_policy_all_is_well() -> None:
    assert (await told(*RBAC, POLICY, BINDING)).verdict is Verdict.OK
    assert (await told(*RBAC, POLICY, BINDING, user=ACCOUNT)).verdict is Verdict.OK
    assert (await told()).verdict is Verdict.OK


RULES = POLICY["spec"]["matchConstraints"]["resourceRules"]


@pytest.mark.parametrize(
    "objects",
    [
        (POLICY,),
        (BINDING,),
        (POLICY, changed(BINDING, validationActions=["Audit"])),
        (POLICY, changed(BINDING, matchResources={"namespaceSelector": {}})),
        (POLICY, changed(BINDING, policyName="another")),
        (changed(POLICY, failurePolicy="Ignore"), BINDING),
        (changed(POLICY, matchConditions=POLICY["spec"]["matchConditions"][1:]), BINDING),
        (
            changed(
                POLICY,
                matchConstraints={"resourceRules": [{**RULES[0], "operations": ["CREATE"]}]},
            ),
            BINDING,
        ),
        (
            changed(
                POLICY,
                matchConstraints={"resourceRules": [{**RULES[0], "resources": ["pods"]}]},
            ),
            BINDING,
        ),
    ],
    ids=[
        "not-bound",
        "no-policy",
        "only-audited",
        "not-everywhere",
        "another-bound",
        "may-fail",
        "other-accounts",
        "patches-pass",
        "other-objects",
    ],
)
async def test_a_policy_that_is_not_in_force_does_not_count(
    objects: tuple[dict[str, Any], ...],
) -> None:
    assert (await told(*RBAC, *objects)).verdict is Verdict.WARN


async def test_the_daemons_own_account_asks_what_it_may_itself() -> None:
    """It needs no right to read roles."""
    assert (await told(user=ACCOUNT)).verdict is Verdict.WARN
    assert (await told(user=ACCOUNT, allowed=False)).verdict is Verdict.OK


async def test_an_account_of_its_own_for_machines_counts() -> None:
    found = await told(
        *RBAC,
        changed(POLICY, matchConditions=[{"expression": f"'{ACCOUNT}'"}]),
        BINDING,
        user=ACCOUNT,
        flags=("--use-service-account-credentials",),
    )

    assert "system:serviceaccount:kube-system:machine-controller may create" in found.found


@pytest.mark.parametrize(
    ("field", "value"),
    [("resources", ["configmaps"]), ("verbs", ["get", "list"]), ("apiGroups", ["example.com"])],
)
async def test_roles_about_other_things_do_not_count(field: str, value: list[str]) -> None:
    role, binding = copy.deepcopy(RBAC)
    role["rules"][0][field] = value

    assert (await told(role, binding)).verdict is Verdict.OK


async def test_accounts_of_others_do_not_count() -> None:
    role, binding = copy.deepcopy(RBAC)
    binding["metadata"]["labels"] = {"app.kubernetes.io/name": "cert-manager"}

    assert (await told(role, binding)).verdict is Verdict.OK


async def test_who_may_not_read_policies_is_told_so() -> None:
    """The examination makes an honest skip of it."""
    with pytest.raises(Forbidden):
        await told(*RBAC, refusal=FORBIDDEN)


async def test_an_api_server_without_policies_has_none() -> None:
    assert (await told(*RBAC, refusal=ABSENT)).verdict is Verdict.WARN


async def test_without_a_cluster_to_join_nothing_is_asked() -> None:
    flags = ("--controllers=machine", "--target-kubeconfig=none", "--control-kubeconfig=x")

    assert (await told(*RBAC, flags=flags)).found == "no cluster is joined"
