"""`kube-ccm doctor`, `explain` and `rollout` for Kubermatic's machine objects."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ccm.app import options
from ccm.app.machineapis import GARDENER, KUBERMATIC
from ccm.base import strict_yaml
from ccm.cli import explain as command
from ccm.cli import rollout
from ccm.cloud import Cloud, errors
from ccm.cloud.machines import Identity
from ccm.doctor import ExaminationError, daemons, examination, explain_facts, machines, reach
from ccm.doctor.case import Case, CheckFinding, Severity
from ccm.doctor.explain import ObjectFacts, document, find_cause
from ccm.doctor.explain_facts import DaemonRequest
from ccm.kube.credentials import TlsSettings
from ccm.kubermatic import names
from ccm.machines import rolloutstatus
from ccm.runtime.object_status import ControllerStatus, ExplainResponse, LastReconcile
from tests.unit.controllers.machines import CLUSTER, DEFINITIONS, World
from tests.unit.controllers.memory_server import MemoryServer
from tests.unit.doctor.stuck import Stuck
from tests.unit.kubermatic.test_machines import ALL, BASE, BOOTSTRAP, WEB, Kubermatic, value

pytestmark = pytest.mark.virtual_time

CONTROLLERS = ",".join(f"kubermatic{name}" for name in ALL)
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
CRD = f"{DEFINITIONS}/machines.{names.GROUP}"


def case(world: World, *flags: str) -> Case:
    words = ["--cloud-provider=fake", f"--cluster-id={CLUSTER}", f"--controllers={CONTROLLERS}"]
    made = Case(
        options=options.parse([*words, "--kubermatic-namespace=default", *flags]), environ={}
    )
    made.client = world.server.client()
    made.cloud = Cloud(name="fake", kubermatic=world.driver, has_cluster_id=True)
    return made


async def settled() -> Kubermatic:
    world = Kubermatic()
    world.deployment(1)
    async with world.running(*ALL):
        await world.settle()
    return world


def path_of(world: Kubermatic) -> str:
    (found,) = world.objects("machines")
    return f"{BASE}/machines/{found['metadata']['name']}"


def judged(found: CheckFinding, severity: Severity, *parts: str) -> None:
    """Check a finding; any but a good one has advice."""
    assert found.severity is severity, found
    assert all(part in str(found) for part in parts), found
    assert bool(found.advice) is (severity is not Severity.OK)


# --- doctor ---------------------------------------------------------------------------------------


@pytest.mark.row("kubermatic-command-03")
async def test_settled_machines_have_no_finding() -> None:
    world = await settled()
    checks = (machines.machines, machines.crds, machines.vms)
    found = [await check(case(world), KUBERMATIC) for check in checks]
    found += [await check(case(world)) for check in (machines.specs, daemons.machine_manager)]

    assert [one.severity for one in found] == [Severity.OK] * 5, found


@pytest.mark.row("kubermatic-command-03")
async def test_unhealthy_machine_is_reported_with_its_error_message() -> None:
    world = await settled()
    status = {"phase": "CrashLoopBackOff", "errorMessage": "no such size"}
    world.server.patch(path_of(world), {"status": status})

    found = await machines.machines(case(world), KUBERMATIC)

    judged(found, Severity.WARN, "no such size", f"explain machine.{names.GROUP}")


@pytest.mark.row("kubermatic-command-03")
@pytest.mark.parametrize("plural", ["machines", "machinesets"])
async def test_missing_crd_is_reported_with_its_manifest(plural: str) -> None:
    world = Kubermatic()
    world.server.drop(f"{DEFINITIONS}/{plural}.{names.GROUP}")

    found = await machines.machines(case(world), KUBERMATIC)

    judged(found, Severity.FAIL, plural, "manifests/kubermatic-crds.yaml")


@pytest.mark.row("kubermatic-command-03")
@pytest.mark.parametrize(
    ("plural", "subresources"), [("machines", {"status": {}}), ("machinesets", None)]
)
async def test_crd_with_another_status_subresource_is_reported(
    plural: str, subresources: Any
) -> None:
    """The status of a Machine is written with the object, all others as a subresource."""
    world = Kubermatic()
    path = f"{DEFINITIONS}/{plural}.{names.GROUP}"
    (version,) = (world.server.get(path) or {})["spec"]["versions"]
    versions = [{**version, "subresources": subresources}]
    world.server.patch(path, {"spec": {"versions": versions}})

    judged(await machines.crds(case(world), KUBERMATIC), Severity.FAIL, f"{plural}.{names.GROUP}")


@pytest.mark.row("kubermatic-command-03")
async def test_crds_of_the_former_group_are_reported() -> None:
    world = Kubermatic()
    body = dict(KUBERMATIC.definitions[0].to_manifest())
    body |= {"metadata": {"name": "machines.machine.k8s.io"}}
    body["spec"] = {**body["spec"], "group": "machine.k8s.io"}
    world.server.put(DEFINITIONS, body)

    found = await machines.crds(case(world), KUBERMATIC)

    judged(found, Severity.WARN, "machine.k8s.io/v1alpha1", "machines.machine.k8s.io")


@pytest.mark.row("kubermatic-command-03")
async def test_machine_of_another_provider_is_reported() -> None:
    world = await settled()
    spec = {"providerSpec": {"value": {"cloudProvider": "aws"}}}
    world.server.patch(path_of(world), {"spec": spec})

    judged(await machines.specs(case(world)), Severity.WARN, "(aws)", "to fake")


@pytest.mark.row("kubermatic-command-03")
@pytest.mark.parametrize(
    ("revision", "why"), [("", "is missing"), ("7", "is of revision 7")], ids=["none", "another"]
)
async def test_machine_without_user_data_is_reported(revision: str, why: str) -> None:
    world = await settled()
    world.server.patch(path_of(world), {"spec": {"providerID": None}, "status": {"nodeRef": None}})
    if revision:
        world.user_data(revision)
    else:
        secrets = f"/api/v1/namespaces/{names.BOOTSTRAP_NAMESPACE}/secrets"
        world.server.drop(f"{secrets}/web-default-bootstrap-config")

    found = await machines.specs(case(world))
    other = await machines.specs(case(world, "--kubermatic-name=another"))

    judged(found, Severity.WARN, "1 Machine without user data", why, names.BOOTSTRAP_NAMESPACE)
    assert other.severity is Severity.OK, "another program is responsible for the machine"


@pytest.mark.row("kubermatic-command-03")
async def test_machine_without_its_vm_is_reported() -> None:
    world = await settled()
    world.driver.vms.clear()

    judged(await machines.vms(case(world), KUBERMATIC), Severity.FAIL, "1 Machine without a VM")


@pytest.mark.row("kubermatic-command-08")
async def test_vm_without_a_machine_is_reported() -> None:
    world = await settled()
    world.driver.add(Identity(cluster=CLUSTER, namespace="default", pool="web", name="x", uid="u"))

    found = await machines.vms(case(world), KUBERMATIC)

    text = "1 VM of this cluster without a Machine: fake:///x (x)"
    judged(found, Severity.WARN, text, "the daemon does not delete them")


@pytest.mark.row("kubermatic-command-03")
async def test_vms_that_cannot_be_listed_are_looked_up_one_by_one() -> None:
    """The interface of Kubermatic's providers has no listing."""
    world = await settled()
    world.driver.faults["list_machines"] = errors.Unimplemented("no listing")

    judged(await machines.vms(case(world), KUBERMATIC), Severity.OK)


@pytest.mark.row("kubermatic-command-03")
async def test_vms_that_cannot_be_listed_are_reported_with_a_field_of_their_machine() -> None:
    world = await settled()
    world.driver.faults["list_machines"] = errors.Unauthenticated("expired")

    found = await machines.vms(case(world), KUBERMATIC)

    key = path_of(world).rpartition("/")[2]
    judged(found, Severity.FAIL, f"Machine default/{key} cannot be listed", "spec.providerSpec")
    assert "class" not in str(found).lower(), "these Machines have none"


@pytest.mark.row("kubermatic-command-03")
async def test_vm_of_another_owner_is_reported_with_the_fields_that_name_it() -> None:
    world = await settled()
    ((provider_id, record),) = world.driver.vms.items()
    other = replace(record, identity=replace(record.identity, cluster="other"))
    world.driver.vms, world.driver.hides = {provider_id: other}, {provider_id}

    found = await machines.vms(case(world), KUBERMATIC)

    judged(found, Severity.FAIL, "of cluster other and was not changed; correct spec.providerID")
    assert "if the Machine has a MachineClass, list the VM" in str(found)


@pytest.mark.row("kubermatic-command-04")
@pytest.mark.parametrize(
    ("holder", "leader", "severity"),
    [
        ("go-1_x", "", Severity.WARN),
        ("go-1_x", "ccm-1_x", Severity.FAIL),
        ("ccm-1_x", "ccm-1_x", Severity.OK),
        ("", "ccm-1_x", Severity.OK),
    ],
)
async def test_go_program_that_runs_too_is_reported(
    holder: str, leader: str, severity: Severity
) -> None:
    world = Kubermatic()
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 60}
    now = "2999-01-01T00:00:00.000000Z"
    world.server.put(
        LEASES, {"metadata": {"name": "machine-controller"}, "spec": {**spec, "renewTime": now}}
    )
    examined = case(world)
    examined.lease_holder = leader

    judged(await daemons.machine_manager(examined), severity)


@pytest.mark.row("kubermatic-command-04")
async def test_lease_that_the_go_program_left_is_no_finding() -> None:
    world = Kubermatic()
    spec = {"holderIdentity": "go-1_x", "leaseDurationSeconds": 60}
    old = {**spec, "renewTime": "2020-01-01T00:00:00.000000Z"}
    world.server.put(LEASES, {"metadata": {"name": "machine-controller"}, "spec": old})

    judged(await daemons.machine_manager(case(world)), Severity.OK)


def test_checks_are_omitted_unless_a_flag_enables_the_controllers() -> None:
    def names_with(controllers: str) -> set[str]:
        given = options.parse([f"--controllers={controllers}"])
        return {check.name for check in examination.CHECKS if check.is_relevant(given)}

    assert names_with(f"*,{CONTROLLERS}") - names_with("*") == {
        f"kubermatic-{name}" for name in ("machines", "crds", "specs", "vms", "lease")
    }


# --- explain --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "kind", "group"),
    [
        ("machines", "machine", ""),
        ("ma", "machine", names.GROUP),
        ("ms", "machineset", names.GROUP),
        ("md", "machinedeployment", names.GROUP),
        ("mcd", "machinedeployment", GARDENER.group),
        (f"machinesets.{names.GROUP}", "machineset", names.GROUP),
        ("machine.example.com", "", ""),
        (f"node.{names.GROUP}", "", ""),
    ],
)
def test_kinds_are_named_as_for_kubectl(word: str, kind: str, group: str) -> None:
    assert command.kind_of(word) == (kind, group)


@pytest.mark.row("kubermatic-command-05")
async def test_group_may_be_omitted_if_only_one_is_served() -> None:
    both = Kubermatic()
    for one in GARDENER.definitions:
        both.server.put(DEFINITIONS, dict(one.to_manifest()))

    async def found(server: MemoryServer, group: str = "") -> Any:
        return await reach.find_machine_api(server.client(), "machineset", group)

    assert await found(Kubermatic().server) is KUBERMATIC
    assert await found(World().server) is await found(MemoryServer()) is GARDENER
    assert await found(both.server, names.GROUP) is KUBERMATIC
    with pytest.raises(ExaminationError, match=rf"machineset\.{names.GROUP}"):
        await found(both.server)


class KubermaticStuck(Stuck):
    """A daemon whose cluster has the objects of both API groups."""

    def define(self) -> None:
        super().define()
        for one in KUBERMATIC.definitions:
            self.server.put(DEFINITIONS, dict(one.to_manifest()))


def web(**status: Any) -> dict[str, Any]:
    owner = {
        "apiVersion": "x",
        "kind": "MachineSet",
        "name": "web-1",
        "uid": "s",
        "controller": True,
    }
    return {
        "metadata": {"name": "web-1-a", "ownerReferences": [owner]},
        "spec": {"providerSpec": {"value": value()}},
        "status": status,
    }


async def explained(stuck: Stuck, kind: str, name: str, *flags: str) -> str:
    given = ("--kubermatic-namespace=default", *flags)
    async with stuck.leading(*given, controllers=f"*,{CONTROLLERS}"):
        facts = await stuck.subject(kind, name, KUBERMATIC)
    verdict = find_cause(facts)
    assert document(facts, verdict)["group"] == names.GROUP
    return "; ".join((verdict.cause, *verdict.advice))


def with_web() -> KubermaticStuck:
    """A set of a deployment whose user data are missing."""
    stuck = KubermaticStuck()
    deployment = {"apiVersion": "x", "kind": "MachineDeployment", "name": "web", "uid": "d"}
    labels = {"app": "web"}
    metadata = {"name": "web-1", "ownerReferences": [{**deployment, "controller": True}]}
    template = {"metadata": {"labels": labels}, "spec": web()["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    stuck.server.put(f"{BASE}/machinesets", {"metadata": metadata, "spec": spec})
    return stuck


@pytest.mark.row("kubermatic-command-05")
@pytest.mark.parametrize(
    ("revision", "phase", "lacks"),
    [("", "none", "; "), ("7", "CrashLoopBackOff", " of the current revision; ")],
    ids=["none", "another"],
)
async def test_machine_without_user_data_is_explained_by_the_secret(
    revision: str, phase: str, lacks: str
) -> None:
    stuck = with_web()
    if revision:
        notes = {names.ANNOTATION_BOOTSTRAP_REVISION: revision}
        metadata = {"name": "web-default-bootstrap-config", "annotations": notes}
        body = {"metadata": metadata, "data": {"cloud-config": "eA=="}}
        stuck.server.put("/api/v1/namespaces", {"metadata": {"name": names.BOOTSTRAP_NAMESPACE}})
        stuck.server.put(BOOTSTRAP, body)
    stuck.server.put(f"{BASE}/machines", web())

    said = await explained(stuck, "machine", "default/web-1-a")

    secret = f"{names.BOOTSTRAP_NAMESPACE}/web-default-bootstrap-config"
    assert (
        f"default/web-1-a has no VM, phase {phase}: waiting for the Secret {secret}{lacks}" in said
    )
    assert "operating-system-manager" in said


@pytest.mark.row("kubermatic-command-05")
async def test_machine_of_another_provider_does_not_wait_for_user_data() -> None:
    stuck, body = with_web(), web()
    body["spec"]["providerSpec"]["value"]["cloudProvider"] = "aws"
    stuck.server.put(f"{BASE}/machines", body)

    said = await explained(stuck, "machine", "default/web-1-a")

    assert "'aws'" in said
    assert "waiting for the Secret" not in said


@pytest.mark.row("kubermatic-command-05")
@pytest.mark.parametrize(
    ("flags", "metadata", "cause"),
    [
        ((), {"labels": {names.LABEL_CONTROLLER: "go"}}, "its label machine.k8s.io/controller is"),
        ((), {"annotations": {names.ANNOTATION_INITIALIZERS: "ipam"}}, "another program prepares"),
        (
            ("--kubermatic-namespace=other",),
            {},
            "it is in namespace default, but --kubermatic-namespace is other",
        ),
    ],
    ids=["label", "initializers", "namespace"],
)
async def test_machine_of_another_program_is_explained(
    flags: tuple[str, ...], metadata: Mapping[str, Any], cause: str
) -> None:
    stuck, body = KubermaticStuck(), web()
    stuck.server.put("/api/v1/namespaces", {"metadata": {"name": "other"}})
    body["metadata"] |= metadata
    stuck.server.put(f"{BASE}/machines", body)

    said = await explained(stuck, "machine", "default/web-1-a", *flags)

    assert f"not managed by this daemon: {cause}" in said


@pytest.mark.row("kubermatic-command-05")
async def test_machine_is_explained_by_its_error_reason() -> None:
    stuck = KubermaticStuck()
    status = {"errorReason": "InsufficientResources", "errorMessage": "10 of 10"}
    stuck.server.put(f"{BASE}/machines", web(**status))
    obj = (
        await stuck.server.client()
        .resource(KUBERMATIC.codec.machines)
        .get("web-1-a", namespace="default")
    )
    account = ControllerStatus(
        controller="kubermatic-machine-controller", last=LastReconcile(ago_s=1.0)
    )
    answer = ExplainResponse(kind="machine", name="x", leads=True, accounts=[account])

    found = find_cause(
        ObjectFacts(kind="machine", name="default/web-1-a", obj=obj, api=KUBERMATIC, answer=answer)
    )

    assert found.cause.endswith("InsufficientResources: 10 of 10")
    assert found.advice == ("raise the quota, or delete unused resources; the daemon retries",)


@pytest.mark.row("kubermatic-command-05")
async def test_facts_are_about_the_object_of_the_named_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, asked = await settled(), list[str]()

    async def ask(_case: Any, request: DaemonRequest[ExplainResponse], *_: Any) -> ExplainResponse:
        asked.append(request.query["kind"])
        return ExplainResponse(kind=kind, name="x")

    monkeypatch.setattr(explain_facts, "ask_daemon", ask)
    examined, trust = case(world), TlsSettings()
    kind = "machinedeployment"
    found = await explain_facts.gather_facts(examined, kind, "default/web", "", trust)
    absent = await explain_facts.gather_facts(
        examined, kind, "default/web", "", trust, group=GARDENER.group
    )

    assert asked == ["kubermaticmachinedeployment", kind]
    assert (found.obj is not None, found.api) == (True, KUBERMATIC)
    assert (absent.obj, absent.api, absent.is_served) == (None, GARDENER, False)


# --- rollout --------------------------------------------------------------------------------------


async def rolled(world: Kubermatic, *words: str) -> str:
    out, client = io.StringIO(), world.server.client()
    request = rollout.read(list(words))
    of = {"status": rollout._status, "history": rollout._history}
    work = of.get(words[0], rollout._change_rollout)
    assert await work(client, KUBERMATIC.codec, request, out) == 0
    return out.getvalue()


@pytest.mark.row("kubermatic-command-06")
async def test_rollout_is_shown_paused_and_undone() -> None:
    world = await settled()
    spec = {"providerSpec": {"value": value("large")}}
    template = {"metadata": {"labels": {"new": "yes"}}, "spec": spec}
    world.server.patch(WEB, {"spec": {"template": template}})
    waits = await rolled(world, "status", "md/web", "--watch=false")
    assert "to be observed by its controller" in waits
    world.user_data("2")
    async with world.running(*ALL):
        await world.settle(300)
    shown = f"machinedeployment.{names.GROUP}/web"

    assert world.sizes() == ["large"]
    assert await rolled(world, "status", "md/web", "-w=false") == '"web" is rolled out\n'
    assert await rolled(world, "pause", "md/web") == f"{shown} paused\n"
    assert (world.server.get(WEB) or {})["spec"]["paused"] is True
    assert await rolled(world, "resume", "md/web") == f"{shown} resumed\n"
    assert await rolled(world, "undo", "md/web") == f"{shown} rolled back to revision 1\n"
    restored = (world.server.get(WEB) or {})["spec"]["template"]
    assert restored["metadata"] == {"labels": {"app": "web"}}
    assert restored["spec"]["providerSpec"]["value"]["cloudProviderSpec"]["size"] == "small"

    async with world.running(*ALL):
        world.user_data("3")
        await world.settle(300)
    assert world.sizes() == ["small"]


@pytest.mark.row("kubermatic-command-06")
async def test_a_restart_replaces_the_machines_and_history_lists_the_revisions() -> None:
    world = await settled()
    shown, annotation = f"machinedeployment.{names.GROUP}/web", "kubectl.kubernetes.io/restartedAt"
    (before,) = world.objects("machines")
    (old,) = world.objects("machinesets")
    assert await rolled(world, "pause", "md/web") == f"{shown} paused\n"
    with pytest.raises(rolloutstatus.RolloutRequestError, match="is paused; resume it first"):
        await rolled(world, "restart", "md/web")
    await rolled(world, "resume", "md/web")
    world.server.patch(WEB, {"metadata": {"annotations": {"kubernetes.io/change-cause": "image"}}})

    assert await rolled(world, "restart", "md/web") == f"{shown} restarted\n"
    with pytest.raises(rolloutstatus.RolloutRequestError, match="a moment ago; try again in 1s"):
        await rolled(world, "restart", "md/web")
    world.user_data("2")
    async with world.running(*ALL):
        await world.settle(300)

    (after,) = world.objects("machines")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert annotation in after["metadata"]["annotations"]
    assert {**after["spec"], "providerID": before["spec"]["providerID"]} == before["spec"]
    new = next(
        one["metadata"]["name"]
        for one in world.objects("machinesets")
        if one["metadata"]["uid"] != old["metadata"]["uid"]
    )
    assert [line.split() for line in (await rolled(world, "history", "md/web")).splitlines()] == [
        ["REVISION", "MACHINESET", "TEMPLATE", "CHANGE-CAUSE"],
        ["1", old["metadata"]["name"], "fake", "ubuntu", "1.35.1", "<none>"],
        ["2", new, "fake", "ubuntu", "1.35.1", "image"],
    ]
    template = strict_yaml.load((await rolled(world, "history", "md/web", "--revision=2")).encode())
    assert annotation in template["metadata"]["annotations"]
    assert template["spec"]["providerSpec"]["value"]["cloudProvider"] == "fake"
    with pytest.raises(rolloutstatus.RolloutRequestError, match=r"no revision 7. .*: 1, 2\."):
        await rolled(world, "history", "md/web", "--revision=7")
