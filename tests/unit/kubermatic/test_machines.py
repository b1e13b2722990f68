"""The machine controllers with Kubermatic's objects, as a whole."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ccm.base import clock
from ccm.cloud import errors
from ccm.cloud.configvar import Resolver
from ccm.cloud.interface import Cloud
from ccm.cloud.kubermatic import KubermaticDriver, ProviderConfig, from_kubermatic
from ccm.cloud.machines import (
    Credentials,
    DeleteMachineResponse,
    Identity,
    ListMachinesRequest,
    MachineInfo,
    MachineRecord,
    MachineRequest,
    find_record,
)
from ccm.controllers.machinedeployment.controller import STATUS_PAUSE_S
from ccm.kube.errors import from_response
from ccm.kubermatic import crds, names
from ccm.kubermatic.codec import CODEC
from ccm.machines import deletion, reasons
from ccm.model import NodeAddress
from ccm.testing.apiserver import kinds
from ccm.testing.clock import advance
from tests.unit.cloud.test_kubermatic import Acme, AcmeCloud
from tests.unit.controllers.machines import CLUSTER, DEFINITIONS, NODES_PATH, FakeDriver, World
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time

BASE = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/default"
SECRETS = "/api/v1/namespaces/default/secrets"
BOOTSTRAP = f"/api/v1/namespaces/{names.BOOTSTRAP_NAMESPACE}/secrets"
ALL = ("machine", "machineset", "machinedeployment")
WEB = f"{BASE}/machinedeployments/web"
TOKEN = {"secretKeyRef": {"namespace": "default", "name": "acme", "key": "token"}}


USER_DATA = b"#cloud-config\nhostname: <MACHINE_NAME>\nurl: ?name=%3CMACHINE_NAME%3E\n  \nend"
BOOTSTRAP_SECRET = f"{BOOTSTRAP}/web-default-bootstrap-config"


def value(size: str = "small") -> dict[str, Any]:
    spec = {"token": TOKEN, "size": size, "networks": None}
    return {"cloudProvider": "fake", "cloudProviderSpec": spec, "operatingSystem": "ubuntu"}


class Kubermatic(World):
    """MachineDeployments, user data, and nodes that join once their instances are there."""

    codec = CODEC

    def __init__(self, server: MemoryServer | None = None, **rules: Any) -> None:
        without = {"creation_timeout_s": None, "health_timeout_s": None}
        kind = {"stores_addresses": True, "asks_for_vms": True, "joins_unready": True}
        rules = {**without, **kind, **rules}
        super().__init__(server, **rules)
        self.server.put("/api/v1/namespaces", {"metadata": {"name": names.BOOTSTRAP_NAMESPACE}})
        self.server.put(SECRETS, {"metadata": {"name": "acme"}, "data": {"token": "c2VjcmV0"}})
        self.user_data("1")

    def define(self) -> None:
        for one in crds.DEFINITIONS:
            made = self.server.put(DEFINITIONS, dict(one.to_manifest()))
            made["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
            self.server.store.put(kinds.DEFINITIONS, made["metadata"]["name"], made)

    def cloud(self) -> Cloud:
        return Cloud(name="fake", machines=self.driver, has_cluster_id=True)

    def strip(self, name: str, **spec: Any) -> None:
        """Change a machine to what the Go program stores, and fields of its spec."""
        path = f"{BASE}/machines/{name}"
        ours = {names.ANNOTATION_ORIGIN: None, names.ANNOTATION_CREATION: None}
        self.server.patch(path, {"metadata": {"annotations": ours}})
        status = {"phase": None, "lastOperation": None, "lastUpdated": None}
        self.server.patch(path, {"spec": spec, "status": status})

    def user_data(self, revision: str) -> None:
        """The operating-system-manager writes the user data of a revision."""
        notes = {names.ANNOTATION_BOOTSTRAP_REVISION: revision}
        body = {
            "metadata": {"name": "web-default-bootstrap-config", "annotations": notes},
            "data": {"cloud-config": base64.b64encode(USER_DATA).decode()},
        }
        if self.server.get(BOOTSTRAP_SECRET):
            self.server.patch(BOOTSTRAP_SECRET, {"metadata": {"annotations": notes}})
        else:
            self.server.put(BOOTSTRAP, body)

    def deployment(self, replicas: int, size: str = "small", **spec: Any) -> None:
        labels = {"app": "web"}
        template = {
            "metadata": {"labels": labels},
            "spec": {
                "providerSpec": {"value": value(size)},
                "versions": {"kubelet": "1.35.1"},
                "metadata": {"labels": {"zone": "a"}},
            },
        }
        whole = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        body = {"metadata": {"name": "web"}, "spec": {**whole, **spec}}
        self.server.put(f"{BASE}/machinedeployments", body)

    def edit(self, **spec: Any) -> None:
        self.server.patch(WEB, {"spec": spec})

    def objects(self, plural: str) -> list[dict[str, Any]]:
        return self.server.list(f"{BASE}/{plural}")

    def sizes(self) -> list[str]:
        """Sizes of the machines that run and do not go."""
        return sorted(
            one["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["size"]
            for one in self.objects("machines")
            if one.get("status", {}).get("phase") == "Running"
            and "deletionTimestamp" not in one["metadata"]
        )

    def change_template(self, size: str, revision: str) -> None:
        """Change the template; its user data are there at once."""
        self.edit_template(providerSpec={"value": value(size)})
        self.user_data(revision)

    def edit_template(self, **spec: Any) -> None:
        """Change fields in the spec of the template."""
        template = (self.server.get(WEB) or {})["spec"]["template"]
        template["spec"] |= spec
        self.edit(template=template)

    def join(self, name: str, provider_id: str) -> None:
        """A node registers."""
        spec = {"providerID": provider_id}
        self.server.put(NODES_PATH, {"metadata": {"name": name}, "spec": spec})
        self.heartbeat(name, Ready="True")

    async def settle(self, seconds: int = 120) -> int:
        """Let nodes join for a time; return the most instances there were."""
        most = 0
        for _ in range(seconds // 2):
            await advance(2)
            most = max(most, len(self.driver.vms))
            for record in list(self.driver.vms.values()):
                name = record.info.node_name
                if not self.node_object(name):
                    self.join(name, record.info.provider_id)
        return most


@pytest.mark.row(
    "kubermatic-machine-01",
    "kubermatic-machine-02",
    "kubermatic-machine-03",
    "kubermatic-machine-04",
    "kubermatic-object-08",
)
async def test_deployment_creates_scales_rolls_and_deletes() -> None:
    world = Kubermatic()
    world.deployment(2)
    async with world.running(*ALL):
        await world.settle()
        assert world.sizes() == ["small"] * 2
        request = world.driver.given["create_machine"]
        assert request.provider_spec == value()
        assert request.kubelet_version == "1.35.1"
        assert request.credentials["Secret/default/acme/token"] == b"secret"
        name = request.identity.name
        assert request.user_data == (
            f"#cloud-config\nhostname: {name}\nurl: ?name={name}\n\nend".encode()
        )
        (first, _) = world.objects("machines")
        assert set(first["metadata"]["finalizers"]) == {
            names.FINALIZER_MACHINE,
            names.FINALIZER_NODE,
        }
        name = first["metadata"]["name"]
        assert first["status"]["nodeRef"]["name"] == name
        assert first["status"]["addresses"]
        node = world.node_object(name)
        assert node["metadata"]["labels"] == {
            names.LABEL_OWNED_BY: first["metadata"]["uid"],
            names.LABEL_OPERATING_SYSTEM: "ubuntu",
            "zone": "a",
        }
        assert node["metadata"]["annotations"] == {names.ANNOTATION_NODE_MACHINE: f"default/{name}"}
        assert "finalizers" not in node["metadata"]
        (found,) = world.objects("machinesets")
        assert found["metadata"]["annotations"][names.ANNOTATION_REVISION] == "1"

        world.edit(replicas=4)
        await world.settle()
        assert world.sizes() == ["small"] * 4
        world.edit(replicas=3)
        await world.settle()
        assert world.sizes() == ["small"] * 3

        template = (world.server.get(WEB) or {})["spec"]["template"]
        template["spec"]["providerSpec"]["value"] = value("large")
        world.edit(template=template)
        await world.settle(30)
        assert world.sizes() == ["small"] * 3, "the user data are of the old revision"
        world.user_data("2")
        most = await world.settle(600)
        assert (world.sizes(), most) == (["large"] * 3, 4)
        status = (world.server.get(WEB) or {})["status"]
        assert (status["updatedReplicas"], status["availableReplicas"]) == (3, 3)

        world.server.drop(WEB)
        await world.settle(300)

    left = [world.objects(one) for one in ("machinedeployments", "machinesets", "machines")]
    assert left == [[], [], []]
    assert world.driver.vms == {}
    assert world.server.list(NODES_PATH) == []


@pytest.mark.row("kubermatic-machine-02")
async def test_finalizers_are_stored_before_the_instance_is_created() -> None:
    """Also if the set, in another process, created the Machine without them."""
    world = Kubermatic()
    stored: list[set[str]] = []
    create = world.driver.create_machine

    async def create_machine(req: MachineRequest) -> MachineInfo:
        (found,) = world.objects("machines")
        stored.append(set(found["metadata"]["finalizers"]))
        return await create(req)

    world.driver.create_machine = create_machine  # type: ignore[method-assign]
    world.deployment(1)
    async with world.running("machineset", "machinedeployment"):
        await advance(10)
    (bare,) = world.objects("machines")
    assert "finalizers" not in bare["metadata"]
    async with world.running("machine"):
        await world.settle()

    assert stored == [{names.FINALIZER_MACHINE, names.FINALIZER_NODE}]


@pytest.mark.row("kubermatic-machine-03")
async def test_node_gets_the_metadata_that_it_lacks_and_keeps_its_own() -> None:
    world = Kubermatic()
    world.deployment(1)
    taints = [{"key": "k", "value": "ours", "effect": one} for one in ("NoSchedule", "NoExecute")]
    metadata = {"labels": {"zone": "a", "own": "x"}, "annotations": {"note": "a", "own": "x"}}
    world.edit_template(metadata=metadata, taints=taints)
    theirs = {"key": "k", "value": "theirs", "effect": "NoSchedule"}
    async with world.running(*ALL):
        await advance(30)
        (found,) = world.objects("machines")
        name = found["metadata"]["name"]
        own = {"labels": {"own": "y"}, "annotations": {"own": "y"}}
        spec = {"providerID": found["spec"]["providerID"], "taints": [theirs]}
        world.server.put(NODES_PATH, {"metadata": {"name": name, **own}, "spec": spec})
        world.heartbeat(name, Ready="True")
        await advance(30)
        joined = world.node_object(name)
        writes = world.server.writes("nodes")
        wrong = {names.ANNOTATION_NODE_MACHINE: "default/other", "note": "b"}
        world.server.patch(f"{NODES_PATH}/{name}", {"metadata": {"annotations": wrong}})
        await advance(30)
        again = world.node_object(name)["metadata"]["annotations"]

    assert joined["metadata"]["labels"] == {
        names.LABEL_OWNED_BY: found["metadata"]["uid"],
        names.LABEL_OPERATING_SYSTEM: "ubuntu",
        "zone": "a",
        "own": "y",
    }
    reference = {names.ANNOTATION_NODE_MACHINE: f"default/{name}"}
    assert joined["metadata"]["annotations"] == {**reference, "note": "a", "own": "y"}
    of_key = [one for one in joined["spec"]["taints"] if one["key"] == "k"]
    assert of_key == [theirs, taints[1]]
    assert writes == 1
    assert again == {**reference, "note": "b", "own": "y"}


@pytest.mark.row("kubermatic-machine-04")
async def test_machine_waits_for_its_user_data() -> None:
    world = Kubermatic()
    world.server.drop(BOOTSTRAP_SECRET)
    world.deployment(1)
    async with world.running(*ALL):
        await advance(60)
        (waits,) = world.objects("machines")
        assert "errorReason" not in waits.get("status", {}), "a user has nothing to do"
        assert world.driver.calls["create_machine"] == 0

        world.user_data("1")
        await advance(1)
        assert len(world.driver.vms) == 1


@pytest.mark.row("kubermatic-machine-04")
async def test_secret_without_user_data_is_an_error() -> None:
    world = Kubermatic()
    world.server.patch(BOOTSTRAP_SECRET, {"data": {"cloud-config": None, "other": "YQ=="}})
    world.deployment(1)
    async with world.running(*ALL):
        await advance(60)
        (found,) = world.objects("machines")

    assert found["status"]["errorReason"] == "InvalidConfiguration"
    assert "lacks the key cloud-config" in found["status"]["errorMessage"]
    assert world.driver.vms == {}


@pytest.mark.row("kubermatic-machine-04")
async def test_machine_of_a_new_template_is_created_as_soon_as_its_user_data_exist() -> None:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        template = (world.server.get(WEB) or {})["spec"]["template"]
        template["spec"]["providerSpec"]["value"] = value("large")
        world.edit(template=template)
        await world.settle(30)
        (waits,) = [one for one in world.objects("machines") if "providerID" not in one["spec"]]
        operation = waits["status"]["lastOperation"]
        assert "is of revision 1, but MachineSet" in operation["description"]
        assert "errorReason" not in waits["status"], "a user has nothing to do"

        world.user_data("2")
        await advance(1)

        assert len(world.driver.vms) == 2


@pytest.mark.row("kubermatic-status-01")
async def test_counts_of_a_deployment_are_written_at_most_every_two_seconds_in_a_roll() -> None:
    """The API has no conditions, so that they are no reason to write the status at once."""
    world, written = Kubermatic(), list[float]()

    def note(method: str, path: str) -> None:
        if (method, path) == ("PATCH", f"{WEB}/status"):
            written.append(clock.monotonic())

    bounds = {"rollingUpdate": {"maxSurge": 4, "maxUnavailable": 2}}
    world.deployment(20, strategy=bounds)
    async with world.running(*ALL):
        await world.settle()
        world.server.refuse = note
        world.change_template("large", "2")
        await world.settle(300)

    assert world.sizes() == ["large"] * 20
    pauses = [after - before for before, after in itertools.pairwise(written)]
    assert min(pauses) >= STATUS_PAUSE_S
    status = (world.server.get(WEB) or {})["status"]
    assert (status["updatedReplicas"], status["availableReplicas"]) == (20, 20)


@pytest.mark.row("kubermatic-machine-05")
async def test_machine_whose_vm_is_gone_is_replaced() -> None:
    """Only after two denials: one answer of the cloud may be stale."""
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        (lost,) = world.objects("machines")
        name = lost["metadata"]["name"]
        world.driver.vms.clear()
        world.heartbeat(name, Ready="False")
        await advance(5)
        assert world.objects("machines")[0]["status"]["phase"] == "Unknown"

        await world.settle(120)

        (new,) = world.objects("machines")
        assert new["metadata"]["name"] != name
        assert new["status"]["phase"] == "Running"
    assert [record.identity.name for record in world.driver.vms.values()] == [
        new["metadata"]["name"]
    ]


@pytest.mark.row("kubermatic-machine-05")
async def test_vms_of_new_machines_are_listed_together_and_not_before_ten_seconds() -> None:
    """A VM that is gone before its node joined is noticed all the same."""
    world = Kubermatic()
    world.driver.seconds = 0.05
    world.deployment(5)
    async with world.running(*ALL):
        await advance(9)
        assert len(world.driver.vms) == 5
        assert world.driver.calls["list_machines"] == 1, "before the creations"
        await advance(21)
        assert world.driver.calls["list_machines"] == 2
        assert world.driver.calls["get_machine_status"] == 0

        lost = world.driver.vms.popitem()[1].identity.uid
        await advance(60)
        uids = {one["metadata"]["uid"] for one in world.objects("machines")}
        assert lost not in uids
        assert len(world.driver.vms) == len(uids) == 5


@pytest.mark.row("kubermatic-machine-02")
async def test_addresses_that_the_cloud_assigns_after_the_creation_are_stored() -> None:
    """For example those of a private network. Without them, the kubelet gets no certificate."""
    world = Kubermatic()
    world.deployment(1)
    late = NodeAddress(type="InternalIP", address="10.0.0.2")
    async with world.running(*ALL):
        await advance(5)
        ((key, record),) = world.driver.vms.items()
        world.driver.vms[key] = replace(record, info=replace(record.info, addresses=(late,)))
        await advance(60)
        (found,) = world.objects("machines")
        await advance(60)

        assert world.objects("machines") == [found], "written once"
    addresses = [(one["type"], one["address"]) for one in found["status"]["addresses"]]
    assert addresses == [("Hostname", found["metadata"]["name"]), ("InternalIP", "10.0.0.2")]


@pytest.mark.row("kubermatic-machine-06")
async def test_machine_that_is_not_ready_but_has_its_vm_is_kept() -> None:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        (kept,) = world.objects("machines")
        world.heartbeat(kept["metadata"]["name"], Ready="False")
        await advance(7200)
        (still,) = world.objects("machines")
        assert still["metadata"]["uid"] == kept["metadata"]["uid"]
        assert still["status"]["phase"] == "Unknown"
        conditions = {one["type"]: one["status"] for one in still["status"]["conditions"]}
        assert conditions["Ready"] == "False"

        world.heartbeat(kept["metadata"]["name"], Ready="True")
        await advance(60)
        assert world.objects("machines")[0]["status"]["phase"] == "Running"


@pytest.mark.row("kubermatic-machine-07")
async def test_machine_of_another_program_is_ignored() -> None:
    """By its label, or because another program still prepares it."""
    world = Kubermatic()
    world.deployment(1)
    template = (world.server.get(WEB) or {})["spec"]["template"]
    template["metadata"]["annotations"] = {names.ANNOTATION_INITIALIZERS: "other"}
    world.edit(template=template)
    async with world.running(*ALL):
        await world.settle()
        assert world.driver.vms == {}
        (found,) = world.objects("machines")
        assert "finalizers" not in found["metadata"]

        path = f"{BASE}/machines/{found['metadata']['name']}"
        notes = {names.ANNOTATION_INITIALIZERS: None}
        world.server.patch(path, {"metadata": {"annotations": notes}})
        await world.settle()
        assert world.sizes() == ["small"]


class Unlisted(FakeDriver):
    """Finds VMs by the UID in their labels; listings lack the VMs of another program."""

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        await super().list_machines(req)
        return []

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        found = find_record(self.vms.values(), req.identity)
        if req.provider_id or found is None:
            return await super().get_machine_status(req)
        await self._called("get_machine_status", req)
        return found.info


@pytest.mark.row("kubermatic-object-02")
@pytest.mark.parametrize("driver", [FakeDriver, Unlisted])
async def test_machine_of_the_go_program_is_taken_over_without_a_cloud_change(
    driver: type[FakeDriver],
) -> None:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        (found,) = world.objects("machines")
    world.strip(found["metadata"]["name"], providerID=None)
    made, world.driver = world.driver, driver()
    world.driver.vms = made.vms

    async with world.running(*ALL):
        await world.settle()
        (again,) = world.objects("machines")

    assert again["spec"]["providerID"] == found["spec"]["providerID"]
    assert again["status"]["phase"] == "Running"
    assert not {"create_machine", "delete_machine"} & set(world.driver.calls)


@pytest.mark.row("kubermatic-machine-08")
async def test_node_finalizer_alone_deletes_the_node_and_no_vm() -> None:
    """The Go program has cleaned up, and was stopped before it deleted the node."""
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        (found,) = world.objects("machines")
    name = found["metadata"]["name"]
    path = f"{BASE}/machines/{name}"
    world.server.patch(path, {"metadata": {"finalizers": [names.FINALIZER_NODE]}})
    world.server.drop(path)
    world.driver.vms.clear()
    world.driver.calls.clear()

    async with world.running("machine"):
        await world.settle(60)

    assert world.objects("machines") == []
    assert world.node_object(name) == {}
    assert "delete_machine" not in world.driver.calls


@pytest.mark.row("kubermatic-machine-08")
@pytest.mark.parametrize("has_reference", [True, False])
async def test_node_is_deleted_only_after_the_instance(*, has_reference: bool) -> None:
    """Without `nodeRef`, it is found by its label."""
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
    (found,) = world.objects("machines")
    name = found["metadata"]["name"]
    if not has_reference:
        world.server.patch(f"{BASE}/machines/{name}", {"status": {"nodeRef": None}})
    world.edit(replicas=0)
    world.driver.faults["delete_machine"] = errors.Unavailable("busy")
    async with world.running(*ALL):
        await advance(60)
        (goes,) = world.objects("machines")
        assert {names.FINALIZER_MACHINE, names.FINALIZER_NODE} <= {*goes["metadata"]["finalizers"]}
        assert world.node_object(name)

        world.driver.faults.clear()
        await advance(60)

    assert world.objects("machines") == []
    assert world.node_object(name) == {}


async def test_conflict_about_a_node_is_repeated_though_nothing_changes() -> None:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        world.drains.seconds = 5  # so that no event of an earlier write comes after the refusal
        refusals = [from_response(409, {}, b"")]
        world.server.refuse = lambda method, path: (
            refusals.pop() if refusals and (method, path[:13]) == ("DELETE", NODES_PATH) else None
        )
        world.server.drop(WEB)
        await world.settle(60)

    assert refusals == []
    assert world.objects("machines") == []
    assert world.server.list(NODES_PATH) == []


@pytest.mark.row("kubermatic-machine-09")
async def test_restored_machine_gives_its_uid_to_its_vm_before_it_is_looked_up() -> None:
    world = Kubermatic()
    moves: list[tuple[str, str]] = []

    async def migrate_uid(req: MachineRequest, former: str) -> None:
        moves.append((former, req.identity.uid))
        for key, record in list(world.driver.vms.items()):
            if record.identity.uid == former:
                identity = replace(record.identity, uid=req.identity.uid)
                world.driver.vms[key] = replace(record, identity=identity)

    world.driver.migrate_uid = migrate_uid  # type: ignore[attr-defined]
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        (found,) = world.objects("machines")
    former = found["metadata"]["uid"]
    path = f"{BASE}/machines/{found['metadata']['name']}"
    world.server.unmake(path)
    meta = {key: found["metadata"][key] for key in ("name", "labels", "ownerReferences")}
    notes = {names.ANNOTATION_FORMER_UID: former}
    restored = {"metadata": {**meta, "annotations": notes}, "spec": {**found["spec"]}}
    del restored["spec"]["providerID"]
    world.server.put(f"{BASE}/machines", restored)
    world.driver.calls.clear()

    async with world.running(*ALL):
        await world.settle()
        (again,) = world.objects("machines")

    assert moves == [(former, again["metadata"]["uid"])]
    assert again["spec"]["providerID"] == found["spec"]["providerID"]
    assert names.ANNOTATION_FORMER_UID not in again["metadata"]["annotations"]
    assert "create_machine" not in world.driver.calls


@pytest.mark.row("kubermatic-machine-09")
@pytest.mark.parametrize("former", ["", "a,b", "not a UID"])
async def test_annotation_without_a_former_uid_takes_no_vm(former: str) -> None:
    world = Kubermatic()
    moves: list[str] = []

    async def migrate_uid(_req: MachineRequest, uid: str) -> None:
        moves.append(uid)

    world.driver.migrate_uid = migrate_uid  # type: ignore[attr-defined]
    world.deployment(0)
    template = {**(world.server.get(WEB) or {})["spec"]["template"]["spec"]}
    notes = {names.ANNOTATION_FORMER_UID: former}
    meta = {"name": "web-1", "annotations": notes}
    world.server.put(f"{BASE}/machines", {"metadata": meta, "spec": template})
    async with world.running(*ALL):
        await advance(60)
        (found,) = world.objects("machines")

    assert moves == []
    assert "set it to the former UID" in found["status"]["errorMessage"]
    assert world.driver.vms == {}


@pytest.mark.row("kubermatic-machine-11")
@pytest.mark.parametrize("skips", [True, False])
async def test_annotated_node_is_not_drained(*, skips: bool) -> None:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        (found,) = world.objects("machines")
        name = found["metadata"]["name"]
        if skips:
            notes = {names.ANNOTATION_SKIP_EVICTION: "yes"}
            world.server.patch(f"{NODES_PATH}/{name}", {"metadata": {"annotations": notes}})
        world.edit(replicas=0)
        await world.settle(60)

    assert world.objects("machines") == []
    assert bool(world.drains.tasks) is not skips


@pytest.mark.row("kubermatic-machine-14")
@pytest.mark.parametrize("keeps_provider_id", [True, False])
async def test_machine_of_the_go_program_is_kept_while_its_node_is_not_ready(
    *, keeps_provider_id: bool
) -> None:
    """It has no phase yet, and is older than the limit for new machines."""
    world = Kubermatic(creation_timeout_s=900.0)
    world.deployment(3)
    async with world.running(*ALL):
        await world.settle()
        await advance(30 * 3600)
    for machine in world.objects("machines"):
        spec = {} if keeps_provider_id else {"providerID": None}
        world.strip(machine["metadata"]["name"], **spec)
        world.heartbeat(machine["metadata"]["name"], Ready="False")
    before = {machine["metadata"]["uid"] for machine in world.objects("machines")}

    async with world.running(*ALL):
        await advance(1200)
        for machine in world.objects("machines"):
            world.heartbeat(machine["metadata"]["name"], Ready="True")
        await world.settle()
        after = world.objects("machines")

    assert {machine["metadata"]["uid"] for machine in after} == before
    assert {machine["status"]["phase"] for machine in after} == {"Running"}
    assert world.driver.deleted == []


async def test_vm_that_replaced_credentials_do_not_show_is_kept() -> None:
    """They may belong to another project."""
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        (machine,) = world.objects("machines")
        data = {"token": base64.b64encode(b"of another project").decode()}
        world.server.patch(f"{SECRETS}/acme", {"data": data})
        hidden, world.driver.vms = world.driver.vms, {}
        world.heartbeat(machine["metadata"]["name"], Ready="False")
        await advance(120)
        world.driver.vms = hidden
        world.heartbeat(machine["metadata"]["name"], Ready="True")
        await world.settle()
        (kept,) = world.objects("machines")

    assert kept["metadata"]["uid"] == machine["metadata"]["uid"]
    assert kept["status"]["phase"] == "Running"
    assert len(world.driver.vms) == 1


async def test_machines_of_a_set_that_is_deleted_alone_are_kept() -> None:
    """With --cascade=orphan: the API server replaces our finalizer by its own."""
    world = Kubermatic()
    world.deployment(2)
    async with world.running(*ALL):
        await world.settle()
    (made,) = world.objects("machinesets")
    path = f"{BASE}/machinesets/{made['metadata']['name']}"
    async with world.running("machine", "machineset"):
        world.server.patch(path, {"metadata": {"finalizers": ["orphan"]}})
        world.server.drop(path)
        await advance(600)

    assert len(world.objects("machines")) == len(world.driver.vms) == 2
    assert world.driver.deleted == []


async def test_clock_jump_replaces_no_machine_that_waits_for_its_user_data() -> None:
    world = Kubermatic(creation_timeout_s=1200.0)
    world.deployment(1)
    world.user_data("0")  # of another revision
    async with world.running(*ALL):
        await advance(3)
        (waiting,) = world.objects("machines")
        loop: Any = asyncio.get_running_loop()
        loop.start += timedelta(hours=5)
        await advance(300)
        (still,) = world.objects("machines")

    assert still["metadata"]["uid"] == waiting["metadata"]["uid"]


@pytest.mark.row("kubermatic-machine-13")
async def test_node_that_is_deleted_slowly_leaves_its_vm() -> None:
    """A finalizer of another program shows the deletion before the node is gone."""
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        (kept,) = world.objects("machines")
        path = f"{NODES_PATH}/{kept['metadata']['name']}"
        world.server.patch(path, {"metadata": {"finalizers": ["example.com/hold"]}})
        world.server.drop(path)
        await advance(600)
        (still,) = world.objects("machines")

    assert still["metadata"]["uid"] == kept["metadata"]["uid"]
    assert world.driver.deleted == []


@pytest.mark.row("kubermatic-machine-13")
async def test_machine_whose_node_is_deleted_waits_for_it() -> None:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        (kept,) = world.objects("machines")
        known = set(world.driver.vms)
        world.server.drop(f"{NODES_PATH}/{kept['metadata']['name']}")
        await advance(7200)
        (still,) = world.objects("machines")
        assert (still["metadata"]["uid"], set(world.driver.vms)) == (kept["metadata"]["uid"], known)
        assert still["status"]["phase"] == "Unknown"

        await world.settle(60)
        assert world.sizes() == ["small"]


@pytest.mark.row("kubermatic-machine-14")
@pytest.mark.parametrize(("limit_s", "is_replaced"), [(600.0, True), (None, False)])
async def test_machine_that_does_not_join_in_time_is_replaced(
    limit_s: float | None, *, is_replaced: bool
) -> None:
    world = Kubermatic(creation_timeout_s=limit_s)
    world.deployment(1)
    async with world.running(*ALL):
        await advance(500)
        (first,) = world.objects("machines")
        await advance(400)
        (now,) = world.objects("machines")

    assert (now["metadata"]["uid"] != first["metadata"]["uid"]) is is_replaced
    assert len(world.driver.vms) == 1


@pytest.mark.row("kubermatic-machine-14")
async def test_machine_of_no_set_is_not_deleted_if_it_does_not_join() -> None:
    world = Kubermatic(creation_timeout_s=600.0)
    spec = {"providerSpec": {"value": value()}, "providerID": "fake:///alone"}
    finalizers = [names.FINALIZER_MACHINE, names.FINALIZER_NODE]
    metadata = {"name": "alone", "finalizers": finalizers}
    made = world.server.put(f"{BASE}/machines", {"metadata": metadata, "spec": spec})
    uid = made["metadata"]["uid"]
    world.driver.add(Identity(cluster=CLUSTER, namespace="default", pool="", name="alone", uid=uid))
    async with world.running(*ALL):
        await advance(1200)
        (alone,) = world.objects("machines")

    assert (alone["metadata"]["uid"], alone["status"]["phase"]) == (uid, "Failed")
    assert "deletionTimestamp" not in alone["metadata"]
    assert len(world.driver.vms) == 1


@pytest.mark.row("kubermatic-machine-15")
@pytest.mark.parametrize("of_set", [False, True])
async def test_machine_without_a_deployment_gets_no_instance(*, of_set: bool) -> None:
    world = Kubermatic()
    spec = {"providerSpec": {"value": value()}, "versions": {"kubelet": "1.35.1"}}
    if of_set:
        labels = {"app": "bare"}
        template = {"metadata": {"labels": labels}, "spec": spec}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    path = f"{BASE}/machinesets" if of_set else f"{BASE}/machines"
    world.server.put(path, {"metadata": {"name": "alone"}, "spec": spec})
    async with world.running(*ALL):
        await advance(60)
        (alone,) = world.objects("machines")

    assert alone["status"]["errorReason"] == "InvalidConfiguration"
    assert "belongs to no MachineDeployment" in alone["status"]["errorMessage"]
    assert world.driver.vms == {}


@pytest.mark.row("kubermatic-machine-16")
async def test_transient_error_of_a_creation_is_shown_and_retried() -> None:
    world = Kubermatic()
    world.driver.faults["create_machine"] = errors.Unavailable("busy")
    world.deployment(1)
    async with world.running(*ALL):
        await advance(60)
        (found,) = world.objects("machines")
        assert "busy" in found["status"]["lastOperation"]["description"]
        assert "errorReason" not in found["status"]
        assert 2 <= world.driver.calls["create_machine"] <= 20

        world.driver.faults.clear()
        await world.settle()
        assert world.sizes() == ["small"]


@pytest.mark.row("kubermatic-machine-16")
@pytest.mark.parametrize("error", [errors.Unavailable, errors.Unauthenticated, errors.OutOfRange])
async def test_repeated_error_of_a_creation_is_written_once(
    error: type[errors.CloudError],
) -> None:
    world = Kubermatic()
    world.driver.faults["create_machine"] = error("no")
    world.deployment(1)
    async with world.running(*ALL):
        await advance(60)
        (before,) = world.objects("machines")
        called = world.driver.calls["create_machine"]
        await advance(1200)

        assert world.driver.calls["create_machine"] > called
        assert world.objects("machines") == [before]


@pytest.mark.row("kubermatic-machine-16")
async def test_machine_that_waits_for_user_data_is_written_once() -> None:
    world = Kubermatic()
    world.user_data("7")
    world.deployment(1)
    async with world.running(*ALL):
        await advance(60)
        (before,) = world.objects("machines")
        assert "is of revision 7" in before["status"]["lastOperation"]["description"]
        await advance(1200)

        assert world.objects("machines") == [before]


@pytest.mark.row("kubermatic-machine-17")
async def test_node_needs_the_name_and_the_provider_id_of_the_instance() -> None:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await advance(60)
        (found,) = world.objects("machines")
        name = found["metadata"]["name"]
        world.join("other", found["spec"]["providerID"])
        await advance(60)
        assert world.objects("machines")[0]["status"]["phase"] == "Pending"
        world.join(name, "fake:///another")
        await advance(60)

        for one in ("other", name):
            assert names.LABEL_OWNED_BY not in world.node_object(one)["metadata"].get("labels", {})


@pytest.mark.row("kubermatic-machine-19")
async def test_node_of_a_deleted_machine_is_drained_until_the_timeout() -> None:
    world = Kubermatic(drain_timeout_s=7200.0)
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        world.edit(replicas=0)
        await world.settle(60)

    task = world.drains.tasks[0]
    assert not task.force
    assert task.left_s is not None
    assert 7100 < task.left_s <= 7200
    assert world.objects("machines") == []


@pytest.mark.row("kubermatic-machine-19")
@pytest.mark.parametrize("ready", ["True", "False"])
async def test_drain_uses_force_after_the_timeout(ready: str) -> None:
    """Until then, the instance stays."""
    world = Kubermatic(drain_timeout_s=7200.0)
    world.drains.seconds = 1e5
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        world.heartbeat(world.objects("machines")[0]["metadata"]["name"], Ready=ready)
        world.edit(replicas=0)
        await advance(7100)
        assert [*{task.force for task in world.drains.tasks}] == [False]
        assert world.driver.calls["delete_machine"] == 0

        await advance(2000)
        assert world.drains.tasks[-1].force


@pytest.mark.row("kubermatic-machine-22")
async def test_settled_machine_causes_no_write_no_event_and_no_cloud_call() -> None:
    """Heartbeats of its node, neither."""
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle(300)
        (found,) = world.objects("machines")
        calls, events = world.driver.calls.total(), [*world.events]
        for _ in range(20):
            await advance(60)
            world.heartbeat(found["metadata"]["name"], Ready="True")
        await advance(10)

        assert world.objects("machines") == [found]
        assert (world.driver.calls.total(), world.events) == (calls, events)


ELSEWHERE = {"namespace": "kube-system", "name": "acme", "key": "token"}


@pytest.mark.row("kubermatic-spec-07")
@pytest.mark.parametrize("kind", ["secretKeyRef", "configMapKeyRef"])
async def test_object_of_another_namespace_is_not_read(kind: str) -> None:
    world = Kubermatic()
    for plural in ("secrets", "configmaps"):
        body = {"metadata": {"name": "acme"}, "data": {"token": "c2VjcmV0"}}
        world.server.put(f"/api/v1/namespaces/kube-system/{plural}", body)
    config = value()
    config["cloudProviderSpec"]["token"] = {kind: ELSEWHERE}
    world.deployment(1)
    world.edit_template(providerSpec={"value": config})
    async with world.running(*ALL):
        await advance(60)
        (found,) = world.objects("machines")
        assert found["status"]["errorReason"] == "InvalidConfiguration"
        text = "must be in the namespace of the Machine, default"
        assert text in found["status"]["errorMessage"]
        assert not world.driver.calls
        await advance(1200)
        assert world.objects("machines") == [found], "written once"
        world.edit(replicas=0)
        await advance(10)
        assert world.objects("machines") == []


@pytest.mark.row("kubermatic-spec-07")
async def test_instance_of_a_machine_without_usable_credentials_is_kept() -> None:
    """The deletion waits, and says why."""
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
    (found,) = world.objects("machines")
    config = value()
    config["cloudProviderSpec"]["token"] = {"secretKeyRef": ELSEWHERE}
    path = f"{BASE}/machines/{found['metadata']['name']}"
    world.server.patch(path, {"spec": {"providerSpec": {"value": config}}})
    world.server.drop(path)
    async with world.running("machine"):
        await advance(60)
        (waits,) = world.objects("machines")
        await advance(1200)
        assert world.objects("machines") == [waits], "written once"

    assert waits["status"]["errorReason"] == "DeleteError"
    assert "must be in the namespace of the Machine" in waits["status"]["errorMessage"]
    assert len(world.driver.vms) == 1


class Written(Kubermatic):
    """A cloud whose provider an outside author wrote; it has no listing."""

    def __init__(self) -> None:
        super().__init__()
        self.account = AcmeCloud()
        self.server.patch(f"{SECRETS}/acme", {"data": {"token": "dDBrM24="}})
        self.deployment(1)
        template = (self.server.get(WEB) or {})["spec"]["template"]
        spec = {"token": TOKEN, "size": "big"}
        acme = {"cloudProvider": "acme", "cloudProviderSpec": spec, "operatingSystem": "ubuntu"}
        template["spec"]["providerSpec"]["value"] = acme
        self.edit(template=template)

    def cloud(self) -> Cloud:
        driver = from_kubermatic(lambda resolver: Acme(self.account, resolver), names=("acme",))
        return Cloud(name="acme", machines=driver, has_cluster_id=True)


@pytest.mark.row("kubermatic-provider-01")
async def test_provider_of_another_author_serves_the_controllers() -> None:
    world = Written()
    for replicas in (1, 0):
        world.edit(replicas=replicas)
        # The second start finds the instance of the first one.
        async with world.running(*ALL):
            await advance(60)
            for one in world.objects("machines"):
                world.join(one["metadata"]["name"], one["spec"]["providerID"])
            await advance(60)
            phases = [one["status"]["phase"] for one in world.objects("machines")]
            assert (phases, len(world.account.servers)) == (["Running"] * replicas, replicas)

    assert world.account.calls.count("create") == 1
    assert world.server.list(NODES_PATH) == []


# --- sets and deployments -------------------------------------------------------------------------


@pytest.mark.row("kubermatic-object-08", "kubermatic-object-09")
async def test_set_has_its_finalizer_and_adopts_a_machine_that_lost_its_owner() -> None:
    world = Kubermatic()
    world.deployment(2)
    async with world.running(*ALL):
        await world.settle()
        before = {one["metadata"]["uid"] for one in world.objects("machines")}
        lost = world.objects("machines")[0]["metadata"]["name"]
        orphan = {"metadata": {"ownerReferences": None}}
        world.server.patch(f"{BASE}/machines/{lost}", orphan)
        await world.settle(60)
        (owner,) = world.objects("machinesets")

    assert {one["metadata"]["uid"] for one in world.objects("machines")} == before
    for one in world.objects("machines"):
        assert [ref["uid"] for ref in one["metadata"]["ownerReferences"]] == [
            owner["metadata"]["uid"]
        ]
    for one in (owner, world.server.get(WEB) or {}):
        assert one["metadata"]["finalizers"] == [names.FINALIZER_FOREGROUND]


@pytest.mark.row("kubermatic-object-11")
async def test_machine_is_available_after_min_ready_seconds() -> None:
    world = Kubermatic()
    world.deployment(1, minReadySeconds=300)
    async with world.running(*ALL):
        await world.settle(120)
        (first,) = world.objects("machines")
        (shown,) = world.objects("machinesets")
        assert shown["status"]["readyReplicas"] == 1
        assert shown["status"].get("availableReplicas", 0) == 0
        await world.settle(400)
        (shown,) = world.objects("machinesets")
        assert shown["status"]["availableReplicas"] == 1

        world.edit(minReadySeconds=5)
        await world.settle(60)
        (changed,) = world.objects("machinesets")
        (still,) = world.objects("machines")
    assert changed["spec"]["minReadySeconds"] == 5
    assert still["metadata"]["uid"] == first["metadata"]["uid"]


@pytest.mark.row("kubermatic-object-16")
async def test_set_has_the_annotations_of_its_deployment_and_its_revision() -> None:
    """A change of these annotations replaces no machine."""
    world = Kubermatic()
    world.deployment(2)
    notes = {"team": "a", "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    world.server.patch(WEB, {"metadata": {"annotations": notes}})

    def annotations() -> list[dict[str, str]]:
        return [one["metadata"]["annotations"] for one in world.objects("machinesets")]

    def revisions(team: str, revision: str, desired: str, most: str) -> dict[str, str]:
        texts = {names.ANNOTATION_DESIRED: desired, names.ANNOTATION_MAX: most}
        return {"team": team, names.ANNOTATION_REVISION: revision, **texts}

    async with world.running(*ALL):
        await world.settle()
        assert annotations() == [revisions("a", "1", "2", "3")]
        before = world.objects("machines")
        world.server.patch(WEB, {"metadata": {"annotations": {"team": "b"}}})
        await world.settle(60)
        assert annotations() == [revisions("b", "1", "2", "3")]
        assert world.objects("machines") == before

        world.edit(replicas=3)
        await world.settle(60)
        assert annotations() == [revisions("b", "1", "3", "4")]
        for revision, size in (("2", "large"), ("3", "small")):
            world.change_template(size, revision)
            await world.settle(600)
            deployment = (world.server.get(WEB) or {})["metadata"]["annotations"]
            assert deployment[names.ANNOTATION_REVISION] == revision

    found = {one[names.ANNOTATION_REVISION]: one for one in annotations()}
    assert found.keys() == {"2", "3"}
    assert found["3"][names.ANNOTATION_REVISION_HISTORY] == "1"


@pytest.mark.row("kubermatic-object-17")
@pytest.mark.parametrize("is_cached", [True, False])
async def test_new_set_gets_another_name_if_its_name_is_taken(*, is_cached: bool) -> None:
    """Another program may take it just before the set is created."""
    other = Kubermatic()
    other.deployment(0)
    async with other.running(*ALL):
        await advance(10)
    (first,) = other.objects("machinesets")
    labels = {"app": "other"}
    spec = {**first["spec"], "selector": {"matchLabels": labels}}
    spec["template"]["metadata"]["labels"] = labels
    taken = {"metadata": {"name": first["metadata"]["name"]}, "spec": spec}
    world = Kubermatic()
    path = f"{BASE}/machinesets"

    def take(method: str, asked: str) -> None:
        if (method, asked.partition("?")[0]) == ("POST", path) and not world.server.list(path):
            world.server.put(path, taken)

    if is_cached:
        world.server.put(path, taken)
    else:
        world.server.refuse = take
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()

        assert world.sizes() == ["small"]
    own = [one for one in world.objects("machinesets") if "ownerReferences" in one["metadata"]]
    assert len(own) == 1
    assert len(world.objects("machinesets")) == 2


@pytest.mark.row("kubermatic-object-18")
async def test_invalid_set_creates_no_machine_and_has_an_event() -> None:
    world = Kubermatic()
    world.deployment(0)
    template = (world.server.get(WEB) or {})["spec"]["template"]
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "db"}}, "template": template}
    world.server.put(f"{BASE}/machinesets", {"metadata": {"name": "bare"}, "spec": spec})
    async with world.running(*ALL):
        await advance(1200)

    assert world.objects("machines") == []
    texts = [text for _, text in world.events if "spec.selector requires app" in text]
    assert len(texts) == 1, world.events


@pytest.mark.row("kubermatic-object-13")
async def test_paused_deployment_is_scaled_and_not_rolled() -> None:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        world.edit(paused=True, replicas=2)
        world.change_template("large", "1")
        await world.settle()
        assert world.sizes() == ["small"] * 2

        world.edit(paused=False)
        world.user_data("2")
        await world.settle(600)
        assert world.sizes() == ["large"] * 2


@pytest.mark.row("kubermatic-object-14")
async def test_old_sets_beyond_the_history_limit_are_deleted() -> None:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
        for revision, size in (("2", "medium"), ("3", "large"), ("4", "huge")):
            world.change_template(size, revision)
            await world.settle(400)
            assert world.sizes() == [size]
        found = world.objects("machinesets")

    revisions = [one["metadata"]["annotations"][names.ANNOTATION_REVISION] for one in found]
    assert sorted(revisions) == ["3", "4"]


class ProjectsDriver(FakeDriver):
    """The token is the name of the project whose VMs it shows."""

    location_fields = ()

    def __init__(self) -> None:
        super().__init__()
        self.projects: dict[str, str] = {}

    def kubermatic_spec(
        self, config: ProviderConfig, resolver: Resolver, *, strict: bool
    ) -> Mapping[str, Any]:
        return {}

    def kubermatic_credentials(self, spec: Mapping[str, Any], resolver: Resolver) -> Credentials:
        return Credentials({"token": resolver.get_credential(spec, "token", "FAKE_TOKEN")})

    async def create_machine(self, req: MachineRequest) -> MachineInfo:
        info = await super().create_machine(req)
        self.projects[info.provider_id] = req.credentials["token"].decode()
        return info

    async def get_machine_status(self, req: MachineRequest) -> MachineInfo:
        self._require(req)
        return await super().get_machine_status(req)

    async def delete_machine(self, req: MachineRequest) -> DeleteMachineResponse:
        self._require(req)
        return await super().delete_machine(req)

    async def list_machines(self, req: ListMachinesRequest) -> Sequence[MachineRecord]:
        project = req.credentials["token"].decode()
        records = await super().list_machines(req)
        return [one for one in records if self.projects[one.info.provider_id] == project]

    def _require(self, req: MachineRequest) -> None:
        if self.projects.get(req.provider_id) != req.credentials["token"].decode():
            raise errors.NotFound(req.provider_id)


class Projects(Kubermatic):
    """Machines without a token, in the project of the daemon's variable."""

    def __init__(self) -> None:
        super().__init__()
        self.driver: ProjectsDriver = ProjectsDriver()
        self.environ = {"FAKE_TOKEN": "former"}
        self.deployment(1)
        # A merge patch: null removes the reference to the Secret.
        self.edit_template(providerSpec={"value": {"cloudProviderSpec": {"token": None}}})

    def cloud(self) -> Cloud:
        driver = KubermaticDriver(self.driver, self.environ)
        return Cloud(name="fake", machines=driver, has_cluster_id=True)


@pytest.mark.row("kubermatic-machine-24")
async def test_deletion_waits_if_a_restart_changes_the_project() -> None:
    world = Projects()
    async with world.running(*ALL):
        await world.settle()
        assert world.sizes() == ["small"]

    world.environ["FAKE_TOKEN"] = "other"
    async with world.running(*ALL):
        await advance(30)
        world.edit(replicas=0)
        await advance(60)
        (waiting,) = world.objects("machines")
        assert waiting["metadata"]["deletionTimestamp"]
        assert reasons.REASON_VM_NOT_VISIBLE in [reason for reason, _ in world.events]
        assert (len(world.driver.vms), world.driver.deleted) == (1, [])

    world.environ["FAKE_TOKEN"] = "former"
    async with world.running(*ALL):
        await advance(60)

    assert (world.objects("machines"), world.driver.vms) == ([], {})


@pytest.mark.row("kubermatic-machine-24")
@pytest.mark.parametrize("is_shown", [True, False])
async def test_machine_of_an_earlier_release_is_deleted(is_shown: bool) -> None:
    """Its recorded origin does not contain the variable of the daemon."""
    world = Projects()
    async with world.running(*ALL):
        await world.settle()
    (machine,) = world.objects("machines")
    path = f"{BASE}/machines/{machine['metadata']['name']}"
    world.server.patch(path, {"metadata": {"annotations": {names.ANNOTATION_ORIGIN: "0123"}}})
    if not is_shown:
        world.driver.vms.clear()
    world.edit(replicas=0)

    async with world.running(*ALL):
        await advance(60)
        assert (world.objects("machines") == []) is is_shown
        # As after a rotation, a VM that is not shown counts as deleted after this time.
        await advance(2 * deletion.NOT_VISIBLE_S)

    assert (world.objects("machines"), world.driver.vms) == ([], {})
