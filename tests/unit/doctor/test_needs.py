"""What the daemon needs is what the shipped RBAC grants, no more and no less."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.app import options
from ccm.app.options import migration
from ccm.doctor.rights import Need, needs

MANIFESTS = Path(__file__).parents[3] / "manifests"

Rule = tuple[str, str, str, str, str]
"""Group, resource, name, namespace, verb."""

REVIEWS = ["tokenreviews", "subjectaccessreviews", "extension-apiserver-authentication"]
"""Resources, or names, that the roles grant which every cluster brings along."""


def given(*words: str) -> options.Options:
    return options.parse(["--cloud-provider=sim", *words])


def rules(found: Iterable[Need]) -> set[Rule]:
    return {(need.group, need.resource, need.name, need.namespace, need.verb) for need in found}


def documents(*path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS.joinpath(*path)).read_text()))


def granted(found: Iterable[dict[str, Any]]) -> set[Rule]:
    return {
        (group, resource, name, role["metadata"].get("namespace", ""), verb)
        for role in found
        if role["kind"] in ("ClusterRole", "Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }


def bound(found: Iterable[dict[str, Any]]) -> set[str]:
    """The roles that are bound and not defined there."""
    found = list(found)
    own = {one["metadata"]["name"] for one in found if one["kind"] in ("ClusterRole", "Role")}
    return {one["roleRef"]["name"] for one in found if "roleRef" in one} - own


def test_the_shipped_rules_are_what_is_needed() -> None:
    wanted = needs(given(), migrated=migration.DEFAULT.leader_name, reviews=True)

    shipped = documents("rbac.yaml")

    assert granted(shipped) == rules(
        need for need in wanted if not {need.resource, need.name} & set(REVIEWS)
    )
    assert {word for need in wanted for word in (need.resource, need.name)} >= set(REVIEWS)
    assert bound(shipped) == {"system:auth-delegator", "extension-apiserver-authentication-reader"}


def test_with_accounts_of_their_own_the_component_grants_the_rest() -> None:
    wanted = needs(given("--use-service-account-credentials"))

    ours = rules(need for need in wanted if not need.account)
    shipped = granted(documents("rbac.yaml")) | granted(
        documents("components", "service-account-credentials", "rbac.yaml")
    )

    assert ours <= shipped
    assert {need.account for need in wanted} == {
        "",
        "node-controller",
        "service-controller",
        "route-controller",
    }


MACHINES = "machine,machineclass,machinesafety,machineset,machinedeployment,machineovershoot"


def test_for_machines_a_component_grants_the_rest() -> None:
    base = rules(needs(given()))
    wanted = rules(needs(given(f"--controllers=*,{MACHINES}")))

    tokens = granted(documents("components", "bootstrap-tokens", "rbac.yaml"))
    assert wanted - base - tokens == granted(documents("components", "machines", "rbac.yaml"))
    optional = needs(given(f"--controllers=*,{MACHINES}"))
    assert tokens == rules(need for need in optional if need.optional)


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
def test_what_is_turned_off_needs_nothing(flags: list[str], resource: str, verb: str) -> None:
    def asked(found: list[Need]) -> bool:
        return any((need.resource, need.verb) == (resource, verb) for need in found)

    assert asked(needs(given()))
    assert not asked(needs(given(*flags)))


def test_each_need_comes_once_and_names_all_who_have_it() -> None:
    wanted = needs(given())

    assert len(rules(wanted)) == len(wanted)
    (patch,) = (each for each in wanted if (each.verb, each.resource) == ("patch", "nodes/status"))
    assert patch.users == ("cloud-node-controller", "node-route-controller")
    assert str(patch) == "patch nodes/status"


def test_the_lease_is_named_as_the_flags_say() -> None:
    wanted = needs(
        given("--leader-elect-resource-name=l", "--leader-elect-resource-namespace=ns"),
        migrated="second",
    )

    shown = [str(need) for need in wanted if need.resource == "leases"]
    assert shown == [
        "create leases in ns",
        *(f"{verb} leases/l in ns" for verb in ("get", "update", "watch")),
        *(f"{verb} leases/second in ns" for verb in ("get", "update", "watch")),
    ]


def test_without_endpoints_nobody_is_asked_about_callers() -> None:
    assert needs(given("--secure-port=0"), reviews=True) == needs(given("--secure-port=0"))
    skipping = needs(given("--authentication-skip-lookup"), reviews=True)
    assert REVIEWS[-1] not in {need.name for need in skipping}


def test_the_record_of_deletions_is_beside_the_lease_and_ours_whoever_acts() -> None:
    wanted = needs(
        given("--leader-elect-resource-namespace=ns", "--use-service-account-credentials")
    )

    found = [need for need in wanted if need.resource == "configmaps"]
    assert [str(need) for need in found] == [
        "create configmaps in ns",
        "get configmaps/kube-ccm-deletions in ns",
        "patch configmaps/kube-ccm-deletions in ns",
    ]
    assert {need.account for need in found} == {""}
