"""The commands for machines may do what their controllers declare, where these do it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ccm.app import options
from ccm.app.clients import (
    counts_deletions,
)
from ccm.app.machines.commands import COMMANDS, MACHINE_CONTROLLER, Command
from ccm.app.options.names import (
    MANIFESTS,
)
from ccm.doctor import rbac
from ccm.doctor.rights import Need, needs
from ccm.gardener import flags as gardener
from ccm.gardener.names import GROUP

WRITERS = "python -m ccm.doctor.rbac"
MACHINES = ("machine-controller", "machineclass-controller", "machine-safety-controller")


def given(*words: str) -> list[Need]:
    found = MACHINE_CONTROLLER.read(["--cloud-provider=sim", *words])
    assert not isinstance(found, str)
    return needs(found)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_files_are_what_is_needed(command: Command) -> None:
    """If not: `python -m ccm.doctor.rbac`."""
    for path, text in rbac.files(command).items():
        assert path.read_text() == text, f"{path} is not as `{WRITERS}` writes it"


def test_every_controller_of_machines_knows_that_there_may_be_two_clusters() -> None:
    theirs = [one for one in MANIFESTS if GROUP in one.groups.values()]

    assert {one.name for one in theirs} >= set(MACHINES)
    assert [one.name for one in theirs if one.roles is not gardener.roles] == []


def test_the_control_cluster_is_asked_for_nothing_outside_of_one_namespace() -> None:
    found = rbac.needed(MACHINE_CONTROLLER)

    wide = [str(need) for need in found[gardener.CONTROL] if need.namespace != "default"]
    assert wide == [f"get customresourcedefinitions/machines.{GROUP}"]
    assert {need.resource for need in found[gardener.CONTROL]} >= {"machines", "leases", "events"}
    assert not {"nodes", "nodes/status"} & {need.resource for need in found[gardener.CONTROL]}
    assert not {"machines", "leases", "events"} & {need.resource for need in found[gardener.TARGET]}
    assert {need.namespace for need in found[gardener.TARGET]} == {""}
    tokens = {(need.verb, need.resource, need.namespace) for need in found[rbac.TOKENS]}
    assert tokens == {(verb, "secrets", "kube-system") for verb in ("create", "patch", "delete")}


def test_without_a_target_no_cluster_is_joined_and_the_namespace_is_the_mark() -> None:
    found = given("--control-kubeconfig=c", "--target-kubeconfig=none", "--namespace=shoot")

    assert {need.cluster for need in found} == {""}
    elsewhere = [str(need) for need in found if need.namespace != "shoot"]
    assert sorted(elsewhere) == [
        "create events in default",
        f"get customresourcedefinitions/machines.{GROUP}",
        "patch events in default",
    ]
    assert "get namespaces in shoot" in map(str, found)


def test_where_machines_are_in_kube_system_both_clusters_are_asked_for_their_secrets() -> None:
    found = given("--control-kubeconfig=c", "--target-kubeconfig=t", "--namespace=kube-system")

    creates = [need for need in found if (need.verb, need.resource) == ("create", "secrets")]
    assert {need.cluster for need in creates} >= {"target"}
    assert {need.cluster for need in found if need.resource == "machines"} == {""}


@pytest.mark.parametrize(
    ("words", "clusters", "counts"),
    [
        ([], {""}, True),
        (["--controllers=machine"], {""}, False),
        (["--controllers=*,machine", "--control-kubeconfig=c"], {"", "control"}, True),
        (["--controllers=*,machine", "--target-kubeconfig=t"], {"", "control", "target"}, True),
        (["--controllers=machine", "--control-kubeconfig=c"], {"", "control"}, False),
    ],
)
def test_what_the_daemon_needs_where(
    words: Sequence[str], clusters: set[str], counts: bool
) -> None:
    chosen = options.parse(["--cloud-provider=sim", *words])
    found = needs(chosen)

    assert {need.cluster for need in found} == clusters
    assert counts_deletions(chosen) is counts
    assert any(need.resource == "configmaps" for need in found) is counts
    events = {need.cluster for need in found if need.resource == "events"}
    assert events == clusters - {"target"}
    assert not any(need.account for need in found if need.cluster)
