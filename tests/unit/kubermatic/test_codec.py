"""Kubermatic's objects: decoded to hub types, and the patches that are written to them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from ccm.cloud import errors
from ccm.cloud.configvar import Reference
from ccm.cloud.kubermatic import reason_of
from ccm.kubermatic import crds, names
from ccm.kubermatic.codec import (
    CODEC,
    MACHINE_DEPLOYMENTS,
    MACHINE_SETS,
    MACHINES,
    KubermaticCodec,
)
from ccm.kubermatic.decoding import NAMES
from ccm.machines import classes, creation, replicas
from ccm.machines.documents import to_plain
from ccm.machines.replicas import DEFAULT_PRIORITY
from ccm.machines.rollout import SetCreation, SetName
from ccm.machines.settings import MachineSettings
from ccm.model import Secret
from ccm.model.machines import (
    DeploymentStatus,
    Machine,
    MachineDeployment,
    MachineSet,
    MachineStatus,
    OperationState,
    OperationType,
    Phase,
    SetStatus,
    Strategy,
)
from ccm.testing.apiserver import kinds

VALUE = {
    "cloudProvider": "hetzner",
    "cloudProviderSpec": {
        "token": {"secretKeyRef": {"namespace": "kube-system", "name": "hetzner", "key": "token"}},
        "serverType": "cx23",
        "networks": None,
    },
    "operatingSystem": "ubuntu",
}
OWNER = {
    "apiVersion": f"{names.GROUP}/{names.VERSION}",
    "kind": "MachineSet",
    "name": "web-5d4",
    "uid": "set-uid",
    "controller": True,
}


def machine(
    meta: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
) -> Machine:
    document = {
        "metadata": {
            "name": "web-1",
            "namespace": "kube-system",
            "uid": "u-1",
            "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [OWNER],
            **(meta or {}),
        },
        "spec": {
            "providerSpec": {"value": VALUE},
            "versions": {"kubelet": "1.35.1"},
            **(spec or {}),
        },
        "status": status or {},
    }
    return MACHINES.decode(msgspec.json.encode(document))


def owner(kind: Any, meta: dict[str, Any] | None = None, **spec: Any) -> Any:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"providerSpec": {"value": VALUE}}}
    whole = {"selector": {"matchLabels": labels}, "template": template, **spec}
    metadata = {"name": "web", "namespace": "kube-system", "uid": "o-1", "resourceVersion": "3"}
    document = {"metadata": {**metadata, **(meta or {})}, "spec": whole}
    return kind.decode(msgspec.json.encode(document))


def machine_set(meta: dict[str, Any] | None = None, **spec: Any) -> MachineSet:
    found: MachineSet = owner(MACHINE_SETS, meta, **spec)
    return found


def deployment(meta: dict[str, Any] | None = None, **spec: Any) -> MachineDeployment:
    found: MachineDeployment = owner(MACHINE_DEPLOYMENTS, meta, **spec)
    return found


def failed(
    description: str, code: str, kind: OperationType = OperationType.CREATE
) -> MachineStatus:
    return MachineStatus(
        phase=Phase.CRASH_LOOP,
        description=description,
        code=code,
        state=OperationState.FAILED.value,
        kind=kind.value,
    )


# --- machines -------------------------------------------------------------------------------------


def test_machine_contains_its_class() -> None:
    found = machine()

    assert found.own_class is not None
    assert (found.class_name, found.group) == ("web-5d4", "set-uid")
    assert found.own_class.name == "web-5d4"
    assert found.own_class.provider == "hetzner"
    assert found.own_class.provider_spec == VALUE
    (reference,) = found.own_class.references
    assert reference == Reference(
        kind="Secret", namespace="kube-system", name="hetzner", key="token"
    )


@pytest.mark.row("kubermatic-object-02")
def test_machine_as_the_go_program_leaves_it_is_known() -> None:
    found = machine(
        {"finalizers": [names.FINALIZER_MACHINE, names.FINALIZER_NODE]},
        {
            "metadata": {"name": "web-1", "labels": {"a": "b"}, "annotations": {"c": "d"}},
            "taints": [{"key": "t", "effect": "NoSchedule"}],
            "configSource": None,
        },
        {
            "nodeRef": {"kind": "Node", "name": "web-1", "uid": "n-1"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "lastUpdated": None,
            "providerStatus": {"ids": [1, 2]},
        },
    )

    assert found.phase is Phase.NEW
    assert found.in_creation
    assert found.creation_started, "its finalizers record that the instance was asked for"
    assert found.may_be_unlisted
    assert (found.node_name, found.vm_name) == ("web-1", "web-1")
    assert (found.node_labels, found.node_annotations) == ({"a": "b"}, {"c": "d"})
    assert found.status.known_state == '{"ids":[1,2]}'
    assert [taint.key for taint in found.taints] == ["t"]


@pytest.mark.parametrize(
    ("uid", "is_own"), [("u-1", True), ("set-uid", True), ("u-of-the-original", False)]
)
def test_record_of_a_creation_counts_for_its_own_machine_only(uid: str, is_own: bool) -> None:
    found = machine({"annotations": {names.ANNOTATION_CREATION: uid}})

    assert found.creation_started is is_own
    assert not found.may_be_unlisted


@pytest.mark.row("kubermatic-machine-07")
def test_label_names_the_responsible_program() -> None:
    labelled = machine({"labels": {names.LABEL_CONTROLLER: "blue"}})

    assert [CODEC.is_ignored(one) for one in (machine(), labelled)] == [False, True]
    blue = KubermaticCodec("blue")
    assert [blue.is_ignored(one) for one in (machine(), labelled)] == [True, False]


@pytest.mark.row("kubermatic-machine-12")
def test_instance_has_the_name_in_the_spec_or_that_of_the_machine() -> None:
    settings = MachineSettings(names=NAMES)
    named = machine(spec={"metadata": {"name": "host"}})

    assert [settings.identity(one).name for one in (named, machine())] == ["host", "web-1"]


@pytest.mark.row("kubermatic-machine-18")
@pytest.mark.parametrize(("before", "is_kept"), [("web-1", True), ("old", False)])
def test_reference_to_a_node_keeps_its_uid_unless_the_node_changes(
    before: str, *, is_kept: bool
) -> None:
    found = machine(status={"nodeRef": {"kind": "Node", "name": before, "uid": "n-1"}})

    patch = CODEC.identity_patch(found, provider_id="hcloud://7", node_name="web-1", origin="")

    assert ("uid" not in patch["status"]["nodeRef"]) is is_kept


@pytest.mark.row("kubermatic-spec-02")
@pytest.mark.parametrize("spec", [{}, {"valueFrom": {"machineClass": {"name": "small"}}}])
def test_machine_without_set_or_spec_is_decoded(spec: dict[str, Any]) -> None:
    alone = machine({"ownerReferences": []}, {"providerSpec": spec})

    assert alone.own_class is not None
    assert alone.own_class.name == "web-1"
    assert alone.own_class.gaps == ("spec.providerSpec.value is missing; set cloudProvider",)


@pytest.mark.row("kubermatic-machine-10")
def test_annotated_machine_is_deleted_first() -> None:
    marked = machine({"annotations": {names.ANNOTATION_DELETE_FIRST: "yes"}})

    assert (marked.priority, machine().priority) == (DEFAULT_PRIORITY - 1, DEFAULT_PRIORITY)


@pytest.mark.row("kubermatic-object-06")
@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        ("InvalidArgument", OperationType.CREATE, "InvalidConfiguration"),
        ("Unauthenticated", OperationType.CREATE, "InvalidConfiguration"),
        ("ResourceExhausted", OperationType.CREATE, "InsufficientResources"),
        ("FailedPrecondition", OperationType.CREATE, "UnsupportedChange"),
        ("AlreadyExists", OperationType.CREATE, "CreateError"),
        ("PermissionDenied", OperationType.DELETE, "DeleteError"),
        ("Unavailable", OperationType.CREATE, None),
        ("Unavailable", OperationType.DELETE, None),
        ("Internal", OperationType.DELETE, "DeleteError"),
    ],
)
def test_terminal_errors_have_a_reason(code: str, kind: OperationType, reason: str | None) -> None:
    error = errors.class_of(code)
    assert error is not None
    status = failed(errors.format_error(error("why")), code, kind)

    body = CODEC.machine_status_patch(machine(), status)["status"]

    assert (body["errorReason"], body["errorMessage"]) == (reason, reason and status.description)


@pytest.mark.row("kubermatic-object-06", "kubermatic-provider-04")
@pytest.mark.parametrize("kind", errors.CODES)
def test_reason_of_a_failed_creation_is_that_of_its_error(kind: type[errors.CloudError]) -> None:
    is_busy = kind is errors.RetryAfter
    error = errors.RetryAfter("why", seconds=1) if is_busy else kind("why")
    status = failed(errors.format_error(error), errors.code_of(error).name)

    body = CODEC.machine_status_patch(machine(), status)["status"]

    assert (body["errorReason"] or "") == reason_of(error)


@pytest.mark.row("kubermatic-names-01", "kubermatic-spec-07")
@pytest.mark.parametrize(
    ("kind", "reason"),
    [(OperationType.CREATE, "InvalidConfiguration"), (OperationType.DELETE, "DeleteError")],
)
def test_fault_of_a_spec_has_a_reason_and_is_read_as_it_was_written(
    kind: OperationType, reason: str
) -> None:
    """Otherwise the status would be written at each pass."""
    status = failed("the spec names another provider", "FailedPrecondition", kind)

    body = CODEC.machine_status_patch(machine(), status)["status"]
    read = machine(status={key: value for key, value in body.items() if value is not None})

    assert body["errorReason"] == reason
    assert (read.status.code, read.status.state) == (status.code, status.state)


@pytest.mark.row("kubermatic-object-06")
def test_success_clears_the_reason() -> None:
    before = machine(status={"errorReason": "CreateError", "errorMessage": "taken"})
    assert before.status.code == "AlreadyExists"
    status = MachineStatus(phase=Phase.RUNNING, state=OperationState.SUCCESSFUL.value)

    body = CODEC.machine_status_patch(before, status)["status"]

    assert (body["errorReason"], body["errorMessage"], body["phase"]) == (None, None, "Running")


@pytest.mark.row("kubermatic-provider-10")
def test_condition_of_an_invalid_spec_is_replaced_and_removed() -> None:
    """It keeps its transition time while the message changes."""
    since = "2026-01-01T00:00:00Z"
    known = {"type": "SpecValid", "status": "False", "message": "old", "lastTransitionTime": since}
    before = machine(status={"conditions": [known]})
    failed = replace(
        before.status,
        description="new",
        code="InvalidArgument",
        state=OperationState.FAILED.value,
        kind=OperationType.CREATE.value,
        updated=datetime(2026, 1, 2, tzinfo=UTC),
    )

    (condition,) = CODEC.machine_status_patch(before, failed)["status"]["conditions"]
    assert (condition["message"], condition["lastTransitionTime"]) == ("new", since)
    passed = replace(before.status, state=OperationState.SUCCESSFUL.value)
    assert CODEC.machine_status_patch(before, passed)["status"]["conditions"] is None


@pytest.mark.parametrize("state", ["", "ordered", '{"b": 1, "a": 2}', '{"a":1}', '"x"', "[1]"])
def test_state_of_the_driver_survives(state: str) -> None:
    patch = CODEC.known_state_patch(machine(), state)
    stored = {} if not state else {"providerStatus": patch["status"]["providerStatus"]}

    assert machine(status=stored).status.known_state == state


def test_provider_state_as_json_is_stored_as_an_object() -> None:
    patch = CODEC.known_state_patch(machine(), '{"a":1}')

    assert patch["status"] == {"providerStatus": {"a": 1}}


@pytest.mark.row("kubermatic-machine-02")
def test_identity_has_provider_id_and_node_in_one_patch() -> None:
    before = machine({"annotations": {names.ANNOTATION_CREATION: "u-1"}})

    patch = CODEC.identity_patch(before, provider_id="hcloud://7", node_name="web-1", origin="abcd")

    assert patch["spec"] == {"providerID": "hcloud://7"}
    assert patch["status"] == {"nodeRef": {"apiVersion": "v1", "kind": "Node", "name": "web-1"}}
    assert patch["metadata"]["annotations"] == {
        names.ANNOTATION_ORIGIN: "abcd",
        names.ANNOTATION_CREATION: None,
    }


@pytest.mark.row("kubermatic-machine-21")
def test_status_is_written_to_the_machine_and_changes_nothing_else() -> None:
    """The CRD of machines has no status subresource."""
    path = MACHINES.path(namespace="a", name="b", subresource="status")
    patch = CODEC.machine_status_patch(machine(), MachineStatus(phase=Phase.RUNNING))

    assert path == f"/apis/{names.GROUP}/{names.VERSION}/namespaces/a/machines/b"
    assert patch.keys() == {"metadata", "status"}
    assert patch["metadata"] == {"uid": "u-1", "resourceVersion": "7"}
    assert MACHINE_SETS.path(namespace="a", name="b", subresource="status").endswith("/status")


def test_claim_adds_both_finalizers_and_the_record() -> None:
    patch = creation.claim_patch(machine(), NAMES, "", records=True)

    assert patch is not None
    assert patch["metadata"]["finalizers"] == [names.FINALIZER_MACHINE, names.FINALIZER_NODE]
    assert patch["metadata"]["annotations"] == {names.ANNOTATION_CREATION: "u-1"}


# --- sets and deployments -------------------------------------------------------------------------


@pytest.mark.row("kubermatic-object-03")
def test_defaults_are_those_of_the_webhook() -> None:
    found = deployment()

    assert (found.replicas, found.max_surge, found.max_unavailable) == (1, 1, 0)
    assert (found.history_limit, found.strategy, found.faults) == (1, Strategy.ROLLING, ())
    assert machine_set().replicas == 1


@pytest.mark.row("kubermatic-object-04")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"replicas": -1}, "spec.replicas is -1; it must be 0 or more"),
        ({"selector": None}, "spec.selector selects everything"),
        ({"selector": {"matchLabels": {"b": "c"}}}, "spec.selector requires b"),
        ({"strategy": {"type": "Recreate"}}, "spec.strategy.type is 'Recreate'"),
        (
            {"strategy": {"rollingUpdate": {"maxSurge": "many"}}},
            "spec.strategy.rollingUpdate.maxSurge is 'many'",
        ),
    ],
)
def test_invalid_deployment_has_a_fault(spec: dict[str, Any], message: str) -> None:
    (fault,) = deployment(**spec).faults

    assert message in fault


@pytest.mark.row("kubermatic-object-04", "kubermatic-machine-10")
def test_invalid_delete_policy_is_a_fault() -> None:
    (fault,) = machine_set(deletePolicy="Best").faults

    assert fault == "spec.deletePolicy is 'Best'; it must be Random, Newest or Oldest"
    assert [machine_set(deletePolicy=one).deletes_newest for one in ("Oldest", "Newest")] == [
        False,
        True,
    ]


@pytest.mark.row("kubermatic-machine-10", "kubermatic-object-07")
@pytest.mark.parametrize(
    ("policy", "rest"), [("Random", "old new"), ("Oldest", "old new"), ("Newest", "new old")]
)
def test_annotated_machine_goes_first_then_one_with_an_error(policy: str, rest: str) -> None:
    def member(name: str, day: int, *, phase: str = "Running", **meta: Any) -> replicas.Member:
        created = {"name": name, "creationTimestamp": f"2026-01-0{day}T00:00:00Z"}
        status = {"phase": phase}
        found = machine({**created, **meta}, status=status)
        return replicas.build_member(found, None, {}, annotation="")

    members = [
        member("new", 4),
        member("old", 1),
        member("error", 2, phase="CrashLoopBackOff"),
        member("marked", 3, annotations={names.ANNOTATION_DELETE_FIRST: "yes"}),
    ]
    newest_first = machine_set(deletePolicy=policy).deletes_newest
    order = replicas.deletion_order(
        members, datetime(2026, 2, 1, tzinfo=UTC), newest_first=newest_first
    )

    assert [one.name for one in order] == ["marked", "error", *rest.split()]


@pytest.mark.row("kubermatic-object-07")
@pytest.mark.parametrize("policy", ["", "Random", "Oldest"])
def test_oldest_machine_is_deleted_first(policy: str) -> None:
    found = machine_set(deletePolicy=policy)

    assert (found.deletes_newest, found.faults) == (False, ())


@pytest.mark.row("kubermatic-object-12")
@pytest.mark.parametrize(
    ("surge", "unavailable", "wanted"),
    [("25%", "25%", (1, 0)), ("50%", "50%", (2, 1)), (0, "10%", (0, 1)), ("0%", 0, (0, 1))],
)
def test_surge_is_rounded_up_and_unavailable_down(
    surge: int | str, unavailable: int | str, wanted: tuple[int, int]
) -> None:
    bounds = {"maxSurge": surge, "maxUnavailable": unavailable}
    found = deployment(replicas=3, strategy={"rollingUpdate": bounds})

    assert (replicas.surge(found), replicas.unavailable(found)) == wanted


@pytest.mark.row("kubermatic-object-05")
def test_templates_are_equal_without_the_hash_and_empty_fields() -> None:
    """Another program computed the hash, and wrote fields with null."""
    labels = {"app": "web", names.LABEL_TEMPLATE_HASH: "12345"}
    metadata = {"labels": labels, "creationTimestamp": None}
    spec = {"providerSpec": {"value": VALUE}, "taints": None}
    of_go = machine_set(template={"metadata": metadata, "spec": spec})
    other = machine_set(template={"metadata": metadata, "spec": {"versions": {"kubelet": "1.1"}}})

    assert of_go.template.essence == deployment().template.essence
    assert other.template.essence != of_go.template.essence


@pytest.mark.row("kubermatic-webhook-18")
@pytest.mark.row("kubermatic-object-10")
def test_new_set_and_machine_have_the_template() -> None:
    name = SetName(name="web-abc", hash="abc", collisions=0)
    making = SetCreation(name=name, replicas=2, annotations={"x": "y"})
    owner_of_set = deployment(minReadySeconds=5)
    reference = MACHINE_DEPLOYMENTS.reference(owner_of_set)

    body = CODEC.set_body(owner_of_set, making, reference)  # type: ignore[arg-type]
    made = MACHINE_SETS.decode(msgspec.json.encode(body))
    whole = CODEC.machine_body(made, reference, "web-abc-1")  # type: ignore[arg-type]

    assert body["metadata"]["finalizers"] == [names.FINALIZER_FOREGROUND]
    assert body["metadata"]["ownerReferences"] == [to_plain(reference)]
    assert made.labels == {"app": "web", names.LABEL_TEMPLATE_HASH: "abc"}
    assert made.selector is not None
    assert made.selector.match_labels == made.template.labels == made.labels
    assert (made.replicas, made.min_ready_s) == (2, 5)
    assert made.template.essence == owner_of_set.template.essence
    assert whole["metadata"]["labels"] == made.labels
    assert whole["metadata"]["generateName"] == "web-abc-"
    assert whole["metadata"]["ownerReferences"] == [to_plain(reference)]
    assert whole["spec"]["providerSpec"] == {"value": VALUE}
    assert whole["spec"]["metadata"] == {"labels": {names.LABEL_OPERATING_SYSTEM: "ubuntu"}}


@pytest.mark.row("kubermatic-object-15")
def test_counts_are_written_only_when_they_change() -> None:
    current = machine_set()
    assert CODEC.set_status_patch(current, SetStatus()) is None
    patch = CODEC.set_status_patch(current, SetStatus(replicas=2, observed=1))

    assert patch is not None
    assert patch["status"] == {
        "observedGeneration": 1,
        "replicas": 2,
        "fullyLabeledReplicas": 0,
        "readyReplicas": 0,
        "availableReplicas": 0,
    }
    assert CODEC.deployment_status_patch(deployment(), DeploymentStatus()) is None
    patch = CODEC.deployment_status_patch(deployment(), DeploymentStatus(updated=1, unavailable=2))
    assert patch is not None
    assert patch["status"] == {
        "observedGeneration": 0,
        "replicas": 0,
        "updatedReplicas": 1,
        "readyReplicas": 0,
        "availableReplicas": 0,
        "unavailableReplicas": 2,
    }


# --- definitions ----------------------------------------------------------------------------------

_REPLICAS = {"Replicas": ".spec.replicas", "Available-Replicas": ".status.availableReplicas"}
COLUMNS = {
    "machines": {
        "Node": ".status.nodeRef.name",
        "Address": ".status.addresses[0].address",
        "Phase": ".status.phase",
    },
    "machinesets": {**_REPLICAS, "MachineDeployment": ".metadata.ownerReferences[0].name"},
    "machinedeployments": _REPLICAS,
}
"""Columns beside those that all kinds have."""


@pytest.mark.row("kubermatic-object-01")
def test_definitions_have_the_short_names_columns_and_subresources_of_the_reference() -> None:
    manifests = [one.to_manifest() for one in crds.DEFINITIONS]
    found = {one["spec"]["names"]["plural"]: one for one in manifests}
    versions = {plural: one["spec"]["versions"][0] for plural, one in found.items()}

    assert {
        plural: (
            one["spec"]["names"]["shortNames"],
            sorted(versions[plural].get("subresources", {})),
        )
        for plural, one in found.items()
    } == {
        "machines": (["ma"], []),
        "machinesets": (["ms"], ["status"]),
        "machinedeployments": (["md"], ["scale", "status"]),
    }
    scale = versions["machinedeployments"]["subresources"]["scale"]
    assert scale == {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    for plural, one in found.items():
        columns = versions[plural]["additionalPrinterColumns"]
        where = ".spec" if plural == "machines" else ".spec.template.spec"
        assert {each["name"]: each["jsonPath"] for each in columns} == {
            "Provider": f"{where}.providerSpec.value.cloudProvider",
            "OS": f"{where}.providerSpec.value.operatingSystem",
            "Kubelet": f"{where}.versions.kubelet",
            **COLUMNS[plural],
            "Age": ".metadata.creationTimestamp",
            "Deleted": ".metadata.deletionTimestamp",
        }
        # `Phase` is ours; the columns without -o wide are those of the reference.
        ours = ["Phase"] if plural == "machines" else []
        wide = [each["name"] for each in columns if each.get("priority")]
        assert wide == ["Deleted", *ours]
        assert one["spec"]["scope"] == "Namespaced"
        assert (versions[plural]["served"], versions[plural]["storage"]) == (True, True)
        assert one["metadata"]["annotations"] == names.LEGACY_API
        assert kinds.kind_of_definition(dict(one)).shape is not None


@pytest.mark.row("kubermatic-object-01")
def test_unknown_fields_are_kept() -> None:
    (schema,) = (
        one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for one in (definition.to_manifest() for definition in crds.DEFINITIONS)
        if one["spec"]["names"]["plural"] == "machines"
    )
    spec = schema["properties"]["spec"]

    for part in (schema, spec, spec["properties"]["versions"]):
        assert part["x-kubernetes-preserve-unknown-fields"] is True


@pytest.mark.row("kubermatic-machine-24")
def test_origin_without_variables_of_the_daemon_never_changes() -> None:
    """Otherwise every deletion would ask the cloud for the VM after an upgrade."""
    own = machine(spec={"providerSpec": {"value": VALUE}}).own_class
    assert own is not None
    secret = Secret(metadata=own.metadata, data={"token": b"t0k3n"})

    def origin(variables: dict[str, str]) -> str:
        return classes.resolve(
            own, lambda *_: secret, variables=lambda *_: variables, providers=["hetzner"]
        ).origin

    assert origin({}) == "eddf"
    assert len({origin({}), origin({"A": "1"}), origin({"A": "2"}), origin({"B": "1"})}) == 4
    assert origin({"A": "\udcff"})  # an environment variable that is not UTF-8
