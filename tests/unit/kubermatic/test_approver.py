"""The approver of kubelets' serving certificates, with Kubermatic's Machines."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from structlog.testing import capture_logs

from ccm.controllers.nodecsrapprover import NodeCSRApprover
from ccm.kube.resources import CERTIFICATE_REQUESTS
from ccm.kubermatic import crds, names
from ccm.kubermatic.codec import CODEC
from ccm.machines.driver import SharedComponents
from ccm.runtime.controller import Runnable
from ccm.testing.clock import advance
from tests.pki import alternative, signing_request
from tests.unit.controllers.machines import DEFINITIONS, World

pytestmark = pytest.mark.virtual_time

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
MACHINES = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/default/machines"


class Approvals(World):
    """Machines with nodes, and the requests of their kubelets."""

    codec = CODEC

    def define(self) -> None:
        for one in crds.DEFINITIONS:
            self.server.put(DEFINITIONS, dict(one.to_manifest()))

    def _approver(self, shared: SharedComponents, client: Any) -> Runnable:
        return NodeCSRApprover(
            caches=shared.caches,
            requests=self.informers[0].informer_for(CERTIFICATE_REQUESTS),
            client=client,
            signer=names.SIGNER,
        ).controller

    def machine_of(self, node: str, *addresses: str, **metadata: Any) -> str:
        """A Machine; its path."""
        known = [{"type": "InternalIP", "address": one} for one in addresses]
        status = {"nodeRef": {"kind": "Node", "name": node}, "addresses": known}
        body = {"metadata": {"name": node, **metadata}, "spec": {}, "status": status}
        self.server.put(MACHINES, body)
        return f"{MACHINES}/{node}"

    def request(self, node: str, *wanted: str, name: str = "", **spec: Any) -> str:
        """The request of a kubelet; its path."""
        user = f"system:node:{node}"
        content = signing_request(user, *map(alternative, wanted))
        body = {
            "signerName": names.SIGNER,
            "request": base64.b64encode(content).decode(),
            "username": user,
            "groups": ["system:nodes", "system:authenticated"],
            "usages": ["digital signature", "server auth"],
            **spec,
        }
        self.server.put(REQUESTS, {"metadata": {"name": name or node}, "spec": body})
        return f"{REQUESTS}/{name or node}"

    def conditions(self, path: str) -> list[str]:
        found = (self.server.get(path) or {}).get("status", {}).get("conditions", [])
        return [f"{one['type']} {one['reason']}" for one in found]

    @property
    def approvals(self) -> int:
        """Requests to the approval subresource so far."""
        return sum(n for (_, path), n in self.server.requests.items() if path.endswith("/approval"))


APPROVED = ["Approved NodeCSRApprover"]


@pytest.mark.row("kubermatic-approver-01")
async def test_request_is_approved_by_one_write_of_the_subresource() -> None:
    world = Approvals()
    world.machine_of("n1", "10.0.0.1")
    earlier = world.request("n1", "n1", "10.0.0.1")
    async with world.running("approver"):
        later = world.request("n1", "n1", name="later")
        await advance(1)

        assert [world.conditions(path) for path in (earlier, later)] == [APPROVED] * 2
        (condition,) = (world.server.get(later) or {})["status"]["conditions"]
        assert condition["status"] == "True"
        assert "default/n1" in condition["message"]
        assert world.approvals == world.server.writes("certificatesigningrequests") == 2


@pytest.mark.row("kubermatic-approver-06")
@pytest.mark.parametrize("kind", ["Approved", "Denied", "Failed"])
async def test_decided_request_is_left_alone(kind: str) -> None:
    world = Approvals()
    world.machine_of("n1", "10.0.0.1")
    path = world.request("n1", "n1")
    decided = {"type": kind, "status": "True", "reason": "Theirs"}
    world.server.patch(f"{path}/approval", {"status": {"conditions": [decided]}})
    async with world.running("approver"):
        world.server.patch(path, {"metadata": {"labels": {"a": "b"}}})
        await advance(1)

    assert world.conditions(path) == [f"{kind} Theirs"]
    assert world.approvals == 0


@pytest.mark.row("kubermatic-approver-06")
async def test_request_denied_while_it_is_approved_stays_denied() -> None:
    """The watch event of the denial is late."""
    world = Approvals()
    world.machine_of("n1", "10.0.0.1")
    denied = {"type": "Denied", "status": "True", "reason": "Theirs"}

    def deny(method: str, path: str) -> None:
        if path.endswith("/approval") and method == "PATCH" and not world.conditions(REQUEST):
            world.server.patch(path, {"status": {"conditions": [denied]}})

    world.server.refuse = deny
    async with world.running("approver"):
        world.request("n1", "n1")
        await advance(1)

    assert world.conditions(REQUEST) == ["Denied Theirs"]


REQUEST = f"{REQUESTS}/n1"


@pytest.mark.row("kubermatic-approver-07")
async def test_refused_request_is_checked_again_when_the_machine_changes() -> None:
    world = Approvals()
    machine = world.machine_of("n1")
    other = world.machine_of("n2")
    with capture_logs() as lines:
        async with world.running("approver"):
            path = world.request("n1", "n1", "10.0.0.1")
            await advance(1)
            assert world.conditions(path) == []

            # Neither another Machine nor another property is a reason to check again.
            world.server.patch(other, {"status": {"addresses": [{"address": "10.0.0.1"}]}})
            world.server.patch(machine, {"status": {"phase": "Pending"}})
            await advance(1)
            assert world.conditions(path) == []

            address = {"type": "InternalIP", "address": "10.0.0.1"}
            world.server.patch(machine, {"status": {"addresses": [address]}})
            await advance(1)
            assert world.conditions(path) == APPROVED

    refused = [line for line in lines if line["event"] == "certificate request not approved"]
    (line,) = refused
    assert "'10.0.0.1'" in line["reason"]
    assert (line["node"], line["log_level"]) == ("n1", "warning")


@pytest.mark.row("kubermatic-approver-07")
async def test_request_waits_for_its_machine_without_a_timer() -> None:
    world = Approvals()
    async with world.running("approver"):
        path = world.request("n1", "n1")
        before = world.server.requests.total()
        await advance(3600)
        assert world.conditions(path) == []
        assert world.server.requests.total() == before

        world.machine_of("n1")
        await advance(1)
        assert world.conditions(path) == APPROVED


@pytest.mark.row("kubermatic-approver-05")
async def test_machine_of_another_program_does_not_count_until_it_is_ours() -> None:
    world = Approvals()
    machine = world.machine_of("n1", labels={names.LABEL_CONTROLLER: "other"})
    async with world.running("approver"):
        path = world.request("n1", "n1")
        await advance(1)
        assert world.conditions(path) == []

        world.server.patch(machine, {"metadata": {"labels": {names.LABEL_CONTROLLER: None}}})
        await advance(1)
        assert world.conditions(path) == APPROVED


@pytest.mark.row("kubermatic-approver-05")
async def test_node_of_a_deleted_or_moved_machine_gets_no_certificate() -> None:
    world = Approvals()
    gone, moved = world.machine_of("n1"), world.machine_of("n2")
    async with world.running("approver"):
        world.server.drop(gone)
        world.server.patch(moved, {"status": {"nodeRef": {"name": "n3"}}})
        await advance(1)
        paths = [world.request(node, node) for node in ("n1", "n2", "n3")]
        await advance(1)

    assert [world.conditions(path) for path in paths] == [[], [], APPROVED]


@pytest.mark.row("kubermatic-approver-02", "kubermatic-approver-06")
async def test_request_to_another_signer_is_ignored_and_no_request_is_denied() -> None:
    world = Approvals()
    world.machine_of("n1", "10.0.0.1")
    async with world.running("approver"):
        paths = [
            world.request("n1", "n1", signerName="kubernetes.io/kube-apiserver-client-kubelet"),
            world.request("n1", "n2", name="foreign"),
            world.request("n1", "n1", name="user", username="admin"),
        ]
        await advance(1)

    assert [world.conditions(path) for path in paths] == [[], [], []]
    assert world.server.writes("certificatesigningrequests") == 0
