"""The shipped RBAC grants exactly the permissions that the daemon needs."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml

from ccm.app import machinecontrollers, options
from ccm.app.machines.commands import MACHINE_CONTROLLER
from ccm.app.options import migration
from ccm.app.options.controllers import MANIFESTS as CONTROLLERS
from ccm.doctor.case import AuthenticatedUser, Case, CheckFinding, Severity
from ccm.doctor.permissions import Permission, bootstrap_tokens, needed_permissions
from ccm.gardener.names import GROUP
from ccm.kube.errors import Forbidden, NotFound
from ccm.machines import flags as gardener
from tests.generated import rbac
from tests.manifests import shipped

MANIFESTS = Path(__file__).parents[3] / "manifests"
MACHINES = "machine,machineclass,machinesafety,machineset,machinedeployment,machineovershoot"
KUBERMATIC = "kubermaticmachine,kubermaticmachineset,kubermaticmachinedeployment,nodecsrapprover"

Rule = tuple[str, str, str, str, str]
"""Group, resource, name, namespace, verb."""

REVIEWS = {"tokenreviews", "subjectaccessreviews", "extension-apiserver-authentication"}
"""Resources, or names, that the roles grant which every cluster brings along."""

OWN_ACCOUNTS = "--use-service-account-credentials"


def given(*words: str) -> options.Options:
    return options.parse(["--cloud-provider=sim", *words])


def rules(found: Iterable[Permission]) -> set[Rule]:
    return {(need.group, need.resource, need.name, need.namespace, need.verb) for need in found}


def documents(*path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS.joinpath(*path)).read_text()))


def granted(*path: str) -> set[Rule]:
    return {
        (group, resource, name, role["metadata"].get("namespace", ""), verb)
        for role in documents(*path)
        if role["kind"] in ("ClusterRole", "Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def test_shipped_rbac_grants_exactly_the_needed_permissions() -> None:
    wanted = needed_permissions(given(), migrated=migration.DEFAULT.leader_name, reviews=True)
    shipped = documents("rbac.yaml")
    own = {one["metadata"]["name"] for one in shipped if one["kind"] in ("ClusterRole", "Role")}
    bound = {one["roleRef"]["name"] for one in shipped if "roleRef" in one} - own

    assert granted("rbac.yaml") == rules(
        need for need in wanted if not {need.resource, need.name} & REVIEWS
    )
    assert {word for need in wanted for word in (need.resource, need.name)} >= REVIEWS
    assert bound == {"system:auth-delegator", "extension-apiserver-authentication-reader"}
    assert len(rules(wanted)) == len(wanted)


@pytest.mark.parametrize(
    ("flags", "resource", "verb"),
    [
        (["--controllers=-cloud-node-lifecycle,*"], "nodes", "delete"),
        (["--controllers=-service,*"], "services", "watch"),
        (["--controllers=cloud-node-lifecycle"], "nodes/status", "patch"),
        (["--controllers=route", "--configure-cloud-routes=false"], "nodes/status", "patch"),
        (["--leader-elect=false"], "leases", "update"),
    ],
)
def test_disabled_features_need_no_permissions(flags: list[str], resource: str, verb: str) -> None:
    def asked(found: list[Permission]) -> bool:
        return any((need.resource, need.verb) == (resource, verb) for need in found)

    assert asked(needed_permissions(given()))
    assert not asked(needed_permissions(given(*flags)))


def test_lease_and_configmap_permissions_follow_the_flags() -> None:
    flags = ("--leader-elect-resource-name=l", "--leader-elect-resource-namespace=ns")
    wanted = needed_permissions(given(*flags, OWN_ACCOUNTS, "--journal=off"), migrated="second")

    found = [need for need in wanted if need.resource in ("leases", "configmaps")]
    assert sorted(map(str, found)) == sorted(
        [
            "create leases in ns",
            *(f"{verb} leases/l in ns" for verb in ("get", "update", "watch")),
            *(f"{verb} leases/second in ns" for verb in ("get", "update", "watch")),
            "create configmaps in ns",
            *(f"{verb} configmaps/kube-ccm-deletions in ns" for verb in ("get", "patch")),
        ]
    )
    assert {need.account for need in found} == {""}


def test_disabled_secure_port_needs_no_review_permissions() -> None:
    assert needed_permissions(given("--secure-port=0"), reviews=True) == needed_permissions(
        given("--secure-port=0")
    )
    skipping = needed_permissions(given("--authentication-skip-lookup"), reviews=True)
    assert "extension-apiserver-authentication" not in {need.name for need in skipping}


# --- the commands for machines ------------------------------------------------------------------


def test_every_machine_controller_declares_cluster_roles() -> None:
    theirs = [one for one in CONTROLLERS if GROUP in one.groups.values()]

    assert len(theirs) == len(MACHINES.split(","))
    assert [one.name for one in theirs if one.roles is not machinecontrollers._roles] == []


# --- the right to create bootstrap tokens -------------------------------------------------------

ACCOUNT = shipped.USER
RBAC = shipped.objects(shipped.TOKENS / "rbac.yaml")
POLICY, BINDING = shipped.objects(shipped.TOKENS_POLICY)
FORBIDDEN = Forbidden(status=403, reason="Forbidden", message="no policies for you")
ABSENT = NotFound(status=404, reason="NotFound", message="no such thing")
RULES = POLICY["spec"]["matchConstraints"]["resourceRules"]
CONDITIONS = POLICY["spec"]["matchConditions"]


async def told(
    *objects: dict[str, Any],
    user: str = "kubernetes-admin",
    allowed: bool = True,
    flags: tuple[str, ...] = (),
    refusal: Exception | None = None,
) -> CheckFinding:
    """Return the finding for these objects; `refusal` is the error of reading policies."""
    by_plural = {"roles": "Role", "rolebindings": "RoleBinding"}
    by_plural |= {"validatingadmissionpolicies": shipped.POLICY}
    by_plural |= {"validatingadmissionpolicybindings": f"{shipped.POLICY}Binding"}

    async def raw(method: str, path: str, *, body: bytes = b"", **_: Any) -> bytes:
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

    case = Case(options=given(*flags), environ={}, user=AuthenticatedUser(username=user))
    client: Any = SimpleNamespace(raw=raw)
    case.client = client
    return await bootstrap_tokens(case)


def changed(obj: dict[str, Any], **spec: Any) -> dict[str, Any]:
    found = copy.deepcopy(obj)
    found["spec"] |= spec
    return found


def with_rule(**rule: Any) -> dict[str, Any]:
    return changed(POLICY, matchConstraints={"resourceRules": [{**RULES[0], **rule}]})


@pytest.mark.parametrize(
    "objects",
    [
        (),
        (POLICY,),
        (BINDING,),
        (POLICY, changed(BINDING, validationActions=["Audit"])),
        (POLICY, changed(BINDING, matchResources={"namespaceSelector": {}})),
        (POLICY, changed(BINDING, policyName="another")),
        (changed(POLICY, failurePolicy="Ignore"), BINDING),
        (changed(POLICY, matchConditions=CONDITIONS[1:]), BINDING),
        (with_rule(operations=["CREATE"]), BINDING),
        (with_rule(resources=["pods"]), BINDING),
    ],
)
async def test_token_role_without_its_admission_policy_is_a_warning(
    objects: tuple[dict[str, Any], ...],
) -> None:
    found = await told(*RBAC, *objects)

    assert found.severity is Severity.WARN
    assert found.message.startswith(f"{ACCOUNT} may create any Secret in kube-system")
    assert "the component bootstrap-tokens" in found.advice[0]


def without(index: int, **metadata: Any) -> list[dict[str, Any]]:
    objects = copy.deepcopy(RBAC)
    objects[index]["metadata"] |= metadata
    return objects


def about(field: str, value: list[str]) -> list[dict[str, Any]]:
    role, binding = copy.deepcopy(RBAC)
    role["rules"][0][field] = value
    return [role, binding]


@pytest.mark.parametrize(
    ("objects", "how", "verdict"),
    [
        ([*RBAC, POLICY, BINDING], {}, Severity.OK),
        ([*RBAC, POLICY, BINDING], {"user": ACCOUNT}, Severity.OK),
        ([], {}, Severity.OK),
        # The daemon's own account needs no permission to read roles: it reviews its own access.
        ([], {"user": ACCOUNT}, Severity.WARN),
        ([], {"user": ACCOUNT, "allowed": False}, Severity.OK),
        (about("resources", ["configmaps"]), {}, Severity.OK),
        (about("verbs", ["get", "list"]), {}, Severity.OK),
        (about("apiGroups", ["example.com"]), {}, Severity.OK),
        (without(1, labels={"app.kubernetes.io/name": "cert-manager"}), {}, Severity.OK),
        (RBAC, {"refusal": ABSENT}, Severity.WARN),
        (
            RBAC,
            {
                "flags": (
                    "--controllers=machine",
                    "--target-kubeconfig=none",
                    "--control-kubeconfig=x",
                )
            },
            Severity.OK,
        ),
    ],
)
async def test_token_permission_counts_only_for_accounts_of_the_daemon(
    objects: list[dict[str, Any]], how: dict[str, Any], verdict: Severity
) -> None:
    assert (await told(*objects, **how)).severity is verdict


async def test_separate_machine_controller_account_is_checked() -> None:
    policy = changed(POLICY, matchConditions=[{"expression": f"'{ACCOUNT}'"}])
    found = await told(*RBAC, policy, BINDING, user=ACCOUNT, flags=(OWN_ACCOUNTS,))

    assert "system:serviceaccount:kube-system:machine-controller may create" in found.message


async def test_forbidden_policies_raise_forbidden() -> None:
    """The examination reports the check as skipped."""
    with pytest.raises(Forbidden):
        await told(*RBAC, refusal=FORBIDDEN)


def test_control_cluster_permissions_stay_in_one_namespace() -> None:
    found = rbac.needed(MACHINE_CONTROLLER)
    control, target = (
        {need.resource for need in found[role]} for role in (gardener.CONTROL, gardener.TARGET)
    )

    wide = [str(need) for need in found[gardener.CONTROL] if need.namespace != "default"]
    assert wide == [f"get customresourcedefinitions/machines.{GROUP}"]
    assert control >= {"machines", "leases", "events"}
    assert not {"nodes", "nodes/status"} & control
    assert not {"machines", "leases", "events"} & target
    assert {need.namespace for need in found[gardener.TARGET]} == {""}
    tokens = {(need.verb, need.resource, need.namespace) for need in found[rbac.TOKENS]}
    assert tokens == {(verb, "secrets", "kube-system") for verb in ("create", "patch", "delete")}


def test_machines_component_grants_the_additional_permissions() -> None:
    wanted = needed_permissions(given(f"--controllers=*,{MACHINES}"))
    tokens = granted("components", "bootstrap-tokens", "rbac.yaml")

    rest = rules(wanted) - rules(needed_permissions(given())) - tokens
    assert rest == granted("components", "machines", "rbac.yaml")
    assert tokens == rules(need for need in wanted if need.optional)


def test_component_for_separate_accounts_grants_the_additional_permissions() -> None:
    wanted = needed_permissions(given(OWN_ACCOUNTS))
    component = ("components", "service-account-credentials", "rbac.yaml")

    ours = rules(need for need in wanted if not need.account)

    assert ours <= granted("rbac.yaml") | granted(*component)
    assert {need.account for need in wanted} == {
        "",
        "node-controller",
        "service-controller",
        "route-controller",
    }


def test_kubermatic_component_grants_the_additional_permissions() -> None:
    # The journal needs some of them, too.
    wanted = needed_permissions(given(f"--controllers=*,{KUBERMATIC}", "--journal=off"))

    rest = rules(wanted) - rules(needed_permissions(given("--journal=off")))
    assert rest == granted("components", "kubermatic", "rbac.yaml")


def persisting(folder: Path, text: str) -> set[Rule]:
    """Permissions that a file of `--persistence-config` adds."""
    file = folder / "persistence.yaml"
    file.write_text(text)
    wanted = needed_permissions(given(f"--persistence-config={file}", "--journal=off"))
    return rules(wanted) - rules(needed_permissions(given("--journal=off")))


def test_journal_needs_the_permissions_of_storage_in_config_maps(tmp_path: Path) -> None:
    added = persisting(tmp_path, "instances: [{kubernetes: {}}]")

    assert added == rules(needed_permissions(given())) - rules(
        needed_permissions(given("--journal=off"))
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("instances: [{memory: {}}]", set()),
        ("instances: [{kubernetes: }]", {("configmaps", "kube-system")}),
        ("instances: [{kubernetes: {namespace: a}}]", {("configmaps", "a")}),
        (
            "instances: [{memory: {}}]\nsecrets: {kubernetes: {namespace: b}}",
            {("secrets", "b")},
        ),
        (
            "instances: [{memory: {}}]\nsecrets: {encrypted: {storage: {kubernetes: {}}}}",
            {("configmaps", "kube-system")},
        ),
        (
            "instances: [{kubernetes: {}}]\nsecrets: {encrypted: {storage: {kubernetes: {}}}}",
            {("configmaps", "kube-system")},
        ),
        (
            (
                "instances: [{kubernetes: }]\n"
                "secrets: {encrypted: {storage: {kubernetes: {namespace: c}}}}"
            ),
            {("configmaps", "kube-system"), ("configmaps", "c")},
        ),
        ("instances: [{memory: {}}]\nsecrets: {encrypted: {storage: 5}}", set()),
        ("instances: 5", set()),
    ],
)
def test_permissions_of_stored_objects_follow_the_file(
    tmp_path: Path, text: str, expected: set[tuple[str, str]]
) -> None:
    added = persisting(tmp_path, text) - {("", "namespaces", "kube-system", "", "get")}

    assert {(resource, namespace) for _, resource, _, namespace, _ in added} == expected
    assert {verb for *_, verb in added} <= {"get", "list", "create", "update", "delete"}
