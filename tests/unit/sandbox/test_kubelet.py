"""Make-believe kubelets: what they register, when they are ready, and when they are silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest

from ccm.kube.errors import AlreadyExists
from ccm.kube.informer import Informer
from ccm.kube.store import Store
from ccm.model import Node, Taint, names
from ccm.model.node import is_uninitialized
from ccm.sandbox import kubelet, podranges
from ccm.testing import builders

pytestmark = pytest.mark.virtual_time

NOW = "2026-01-02T03:04:05Z"
NOT_READY = Taint(key=names.TAINT_NOT_READY, effect=names.EFFECT_NO_SCHEDULE)


def test_a_new_node_knows_its_host_name_and_waits_for_its_cloud() -> None:
    node = msgspec.convert(kubelet.new_node("vm-1", NOW), Node)

    assert is_uninitialized(node)
    assert (node.taints[0].value, node.taints[0].effect) == ("true", names.EFFECT_NO_SCHEDULE)
    assert (node.provider_id, node.ready) == ("", names.STATUS_FALSE)
    assert node.labels[names.LABEL_HOSTNAME] == "vm-1"
    assert node.labels.keys() == {names.LABEL_HOSTNAME, names.LABEL_OS, names.LABEL_ARCH}
    assert [(one.type, one.address) for one in node.addresses] == [("Hostname", "vm-1")]


def test_a_new_node_that_has_its_provider_id_waits_for_nothing() -> None:
    node = msgspec.convert(kubelet.new_node("vm-1", NOW, provider_id="x://1"), Node)

    assert (node.provider_id, list(node.taints)) == ("x://1", [])


@pytest.mark.parametrize(
    ("taints", "is_running", "wanted"),
    [
        ([builders.uninitialized_taint()], True, "False"),
        ([builders.uninitialized_taint()], False, "Unknown"),
        ([], True, "True"),
        ([], False, "Unknown"),
    ],
)
def test_a_node_is_ready_when_it_is_initialised_and_its_machine_runs(
    taints: list[Taint], is_running: bool, wanted: str
) -> None:
    assert kubelet.wanted_ready(builders.node(taints=taints), is_running=is_running) == wanted


def test_lifting_the_not_ready_taint_keeps_the_others_and_is_bound_to_the_version() -> None:
    node = builders.node(taints=[NOT_READY, builders.shutdown_taint()], resource_version="7")

    patch = kubelet.not_ready_taint_patch(node)

    assert patch is not None
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert [taint.key for taint in patch["spec"]["taints"]] == [names.TAINT_SHUTDOWN]
    assert kubelet.not_ready_taint_patch(builders.node()) is None


def test_a_heartbeat_leaves_the_time_of_the_last_change_alone() -> None:
    (condition,) = kubelet.ready_patch("True", NOW, turned=False)["status"]["conditions"]

    assert condition["lastHeartbeatTime"] == NOW
    assert "lastTransitionTime" not in condition


class Api:
    """Notes what is asked, and answers with what is in the cache that a test fills."""

    def __init__(self) -> None:
        self.store: Store[Node] = Store()
        self.created: list[str] = []
        self.reports: list[tuple[str, str]] = []
        self.lifted: list[str] = []
        self.ranges: list[tuple[str, str]] = []
        self.exists = False

    async def create(self, obj: Mapping[str, Any]) -> Node:
        self.created.append(obj["metadata"]["name"])
        if self.exists:
            raise AlreadyExists(status=409, reason="AlreadyExists", message="it is there")
        return msgspec.convert(obj, Node)

    async def patch_strategic(
        self, name: str, patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Node:
        assert subresource == "status"
        self.reports.append((name, patch["status"]["conditions"][0]["status"]))
        return self._found(name)

    async def patch_merge(self, name: str, patch: Mapping[str, Any]) -> Node:
        if "podCIDR" in patch["spec"]:
            assert patch["spec"] == {
                "podCIDR": patch["spec"]["podCIDR"],
                "podCIDRs": [patch["spec"]["podCIDR"]],
            }
            self.ranges.append((name, patch["spec"]["podCIDR"]))
        else:
            self.lifted.append(name)
        return self._found(name)

    def _found(self, name: str) -> Node:
        found = self.store.get(name)
        assert found is not None
        return found


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def kubelets(api: Api) -> kubelet.Kubelets:
    return kubelet.Kubelets(cast("Informer[Node]", api), api)


I1, I2, NONE = {"a": "i-1"}, {"a": "i-2"}, dict[str, str]()


@pytest.mark.parametrize(
    ("exists", "running", "registered"),
    [
        (False, (I1, I1), 1),
        (True, (I1, I1), 1),
        (False, (I1, NONE, I1), 2),
        (False, (I1, I2), 2),
    ],
    ids=["once, even if its node is deleted", "taken over", "booted again", "another machine"],
)
async def test_a_kubelet_registers_when_its_machine_boots(
    kubelets: kubelet.Kubelets,
    api: Api,
    exists: bool,
    running: tuple[dict[str, str], ...],
    registered: int,
) -> None:
    api.exists = exists
    for machines in running:
        kubelets.follow(machines)
        await kubelets.sync("a")

    assert api.created == ["a"] * registered


async def test_an_initialised_node_becomes_ready_and_loses_the_taint(
    kubelets: kubelet.Kubelets, api: Api
) -> None:
    kubelets.follow(I1)
    api.store.put(builders.node("a", ready="False", taints=[NOT_READY]))

    await kubelets.sync("a")

    assert api.reports == [("a", "True")]
    assert api.lifted == ["a"]


async def test_nothing_is_written_about_a_node_that_waits_for_its_cloud(
    kubelets: kubelet.Kubelets, api: Api
) -> None:
    kubelets.follow(I1)
    taints = [builders.uninitialized_taint(), NOT_READY]
    api.store.put(builders.node("a", ready="False", taints=taints))

    await kubelets.sync("a")

    assert (api.created, api.reports, api.lifted) == ([], [], [])


async def test_a_node_without_a_machine_turns_unknown(kubelets: kubelet.Kubelets, api: Api) -> None:
    api.store.put(builders.node("a", ready="True"))

    await kubelets.sync("a")

    assert api.reports == [("a", "Unknown")]


async def test_each_node_gets_a_range_of_pod_addresses_once(api: Api) -> None:
    ranges = podranges.PodRanges()
    kubelets = kubelet.Kubelets(cast("Informer[Node]", api), api, ranges=ranges)
    kubelets.follow({"a": "i-1", "b": "i-2"})
    api.store.put(builders.node("a"))
    api.store.put(builders.node("b", pod_cidrs=["100.64.0.0/24"]))

    await kubelets.sync("b")
    await kubelets.sync("a")
    await kubelets.sync("a")

    assert api.ranges == [("a", "100.64.1.0/24")] * 2
