"""Gardener objects decoded to hub types, also with invalid values; patches; API names."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ccm.gardener import decoding, names
from ccm.gardener import types as documents
from ccm.gardener.codec import CODEC, MACHINE_DEPLOYMENTS, MACHINE_SETS
from ccm.kube import decode
from ccm.kube.resources import ResourceKind
from ccm.machines import classes, reasons
from ccm.machines.documents import clamp_s
from ccm.machines.replicas import DEFAULT_PRIORITY
from ccm.model import ObjectMeta, Secret
from ccm.model import names as kubernetes
from ccm.model.machines import Machine, MachineSet, Phase

META = {
    "name": "m",
    "namespace": "default",
    "uid": "u",
    "resourceVersion": "7",
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
CLASS = {"kind": "MachineClass", "name": "small"}
SELECTOR: dict[str, Any] = {"matchLabels": {"name": "web"}}
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"name": "web"}, "annotations": {"a": 1, "b": None}},
    "spec": {"class": CLASS},
}


def machine(spec: Any = None, status: Any = None, **metadata: Any) -> Machine:
    found = {"metadata": META | metadata, "spec": spec or {}, "status": status or {}}
    return decoding.machine(msgspec.convert(found, documents.Machine))


def machine_set(metadata: Any = None, **spec: Any) -> MachineSet:
    body = {"replicas": 1, "selector": SELECTOR, "template": TEMPLATE, **spec}
    found = {"metadata": META | (metadata or {}), "spec": body}
    return decoding.machine_set(msgspec.convert(found, documents.MachineSet))


def resolved(given: dict[str, Any], **secrets: Secret) -> classes.ResolvedClass:
    obj = decoding.machine_class(
        msgspec.convert({"metadata": META, **given}, documents.MachineClass)
    )
    return classes.resolve(obj, lambda _namespace, name: secrets[name], providers=["acme"])


def secret(**data: bytes) -> Secret:
    return Secret(metadata=ObjectMeta(name="s", namespace="default"), data=data)


def test_secret_repr_hides_its_values() -> None:
    assert repr(secret(key=b"hunter2")) == "Secret(default/s: key)"


def test_credentials_secret_ref_overrides_secret_ref() -> None:
    given = {
        "secretRef": {"name": "one", "namespace": "default"},
        "credentialsSecretRef": {"name": "two"},
    }
    found = resolved(given, one=secret(key=b"1", userData=b"u"), two=secret(key=b"2"))

    assert dict(found.credentials) == {"key": b"2", "userData": b"u"}
    assert (found.user_data, found.faults) == (b"u", ())
    assert "b'u'" not in repr(found)


def test_a_secret_of_another_namespace_is_refused() -> None:
    found = resolved({"secretRef": {"name": "one", "namespace": "elsewhere"}}, one=secret(key=b"1"))

    assert (len(found.faults), len(found.credentials)) == (1, 0)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ""),
        ({"replicas": -1}, "spec.replicas is -1"),
        ({"selector": None}, "spec.selector selects everything"),
        ({"selector": {}}, "spec.selector selects everything"),
        ({"selector": {"matchLabels": {"name": "api"}}}, "spec.selector requires name"),
        (
            {
                "selector": {
                    "matchExpressions": [{"key": "name", "operator": "NotIn", "values": ["web"]}]
                }
            },
            "spec.selector requires name",
        ),
        (
            {"selector": {"matchExpressions": [{"key": "name", "operator": "~"}]}},
            "spec.selector: operator '~'",
        ),
        ({"template": {}}, "spec.selector requires name"),
        (
            {"template": TEMPLATE | {"spec": {"class": {"name": "small"}}}},
            "spec.template.spec.class.kind is ''",
        ),
        (
            {"template": TEMPLATE | {"spec": {"class": {"kind": "MachineClass"}}}},
            "spec.template.spec.class.name is empty",
        ),
    ],
)
def test_invalid_machine_set_spec_is_reported_as_a_fault(spec: Any, expected: str) -> None:
    found = machine_set(**spec).faults

    assert (found[:1] or ("",))[0].startswith(expected)
    assert bool(found) is bool(expected)


@pytest.mark.parametrize("kind", [MACHINE_SETS, MACHINE_DEPLOYMENTS], ids=lambda kind: kind.plural)
def test_deeply_nested_template_makes_only_its_object_malformed(kind: ResourceKind[Any]) -> None:
    """The API server stores such a template, and a user can create it."""
    deep = json.loads('{"a": ' * 900 + "1" + "}" * 900)
    bad = {"metadata": META, "spec": {"template": {"metadata": {"x": deep}}}}
    good = {"metadata": META | {"name": "good"}, "spec": {"template": TEMPLATE}}
    body = json.dumps({"items": [bad, good], "metadata": {"resourceVersion": "9"}})

    page = decode.decode_page(kind, body.encode())
    event = decode.decode_event(kind, json.dumps({"type": "ADDED", "object": bad}).encode())

    assert ([one.name for one in page.items], page.malformed_keys) == (["good"], ["default/m"])
    assert (event.type, event.key) == ("MALFORMED", "default/m")


PROMISED = """
machine.sapcloud.io/machine-controller-manager machine.sapcloud.io/machine-controller
node.machine.sapcloud.io/machine-controller node name force-deletion force-drain freeze
machine-template-hash node.machine.sapcloud.io/scale-up-disabled node.gardener.cloud/machine-name
node.machine.sapcloud.io/candidate-for-update node.machine.sapcloud.io/selected-for-update
node.machine.sapcloud.io/update-result machinepriority.machine.sapcloud.io
machine.sapcloud.io/marked-for-deletion-time node.machine.sapcloud.io/trigger-deletion-by-mcm
machine.sapcloud.io/last-deployment-replica-change-by-scaler-time
node.machine.sapcloud.io/effective-creation-timeout node.machine.sapcloud.io/machine-join-duration
node.machine.sapcloud.io/last-applied-anno-labels-taints
node.machine.sapcloud.io/last-applied-virtual-capacity node.machine.sapcloud.io/not-managed-by-mcm
node.machine.sapcloud.io/update-failed-reason node.machine.sapcloud.io/preserve
node.machine.sapcloud.io/last-applied-node-preserve-value safety.machine.sapcloud.io/unfreeze
deployment.kubernetes.io/revision deployment.kubernetes.io/revision-history
deployment.kubernetes.io/desired-replicas deployment.kubernetes.io/max-replicas
cluster-autoscaler.kubernetes.io/scale-down-disabled
cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm
node.gardener.cloud/critical-components-not-ready
deployment.machine.sapcloud.io/prefer-no-schedule node.machine.sapcloud.io/preserved Terminating
InPlaceUpdate Preserved
"""


def test_gardener_api_names_are_defined_byte_by_byte() -> None:
    ours = {
        text
        for module in (names, reasons, kubernetes)
        for text in vars(module).values()
        if isinstance(text, str)
    }

    assert [name for name in PROMISED.split() if name not in ours] == []


@pytest.mark.parametrize(
    ("annotation", "field", "seconds"),
    [("", "90s", 90.0), ("1h", "90s", 3600.0), ("", "soon", None), ("soon", "90s", None)],
)
def test_creation_timeout_annotation_overrides_the_field(
    annotation: str, field: str, seconds: float | None
) -> None:
    notes = {names.ANNOTATION_CREATION_TIMEOUT: annotation}
    assert machine({"creationTimeout": field}, annotations=notes).creation_timeout_s == seconds


def test_invalid_field_values_are_ignored_or_clamped() -> None:
    metadata = {"labels": {"a": 1, "b": None}, "annotations": "none"}
    found = machine(
        {
            "nodeTemplate": {"metadata": metadata},
            "nodeConditions": " A, ,B ",
            "class": {"name": "x"},
        },
        {"currentStatus": {"phase": "Dancing", "lastUpdateTime": "yesterday"}},
        annotations={names.ANNOTATION_MARKED: "yesterday"},
    )
    assert (found.node_labels, found.node_annotations, found.class_name) == ({"a": "1"}, {}, "")
    assert found.unhealthy_conditions == ("A", "B")
    assert (found.phase, found.status.since, found.marked) == (Phase.FOREIGN, None, None)
    assert machine_set(metadata={"annotations": {names.ANNOTATION_SCALER_TIME: "x"}}).scaled is None
    assert machine_set(template={"metadata": {"labels": ["no map"]}}).template.labels == {}
    for seconds in (2**31, 10**400, -(10**400)):
        assert abs(clamp_s(seconds)) == 2**31 - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[("1", 1), ("-5", -5), ("+5", 5), ("-" + "9" * 5000, DEFAULT_PRIORITY)],
        *[(text, DEFAULT_PRIORITY) for text in ("", "x", "-", "--1", " 1", "1_0", "²", "٣")],
    ],
)
def test_invalid_priority_falls_back_to_the_default(text: str, expected: int) -> None:
    assert machine(annotations={names.ANNOTATION_PRIORITY: text}).priority == expected


def test_class_version_changes_only_with_spec_or_credentials() -> None:
    def version(spec: str, key: bytes, **metadata: Any) -> tuple[str, ...]:
        given = {"providerSpec": {"size": spec}, "secretRef": {"name": "s"}}
        return resolved(given | {"metadata": META | metadata}, s=secret(key=key)).version

    assert version("a", b"1") == version("a", b"1", resourceVersion="8", finalizers=["x"])
    assert len({version("a", b"1"), version("b", b"1"), version("a", b"2")}) == 3


def of_node(labels: Any, **more: Any) -> dict[str, Any]:
    return {"nodeTemplate": {"metadata": {"labels": labels, **more}}}


@pytest.mark.parametrize(
    ("has", "template", "expected"),
    [
        ({"drainTimeout": "1m"}, {"drainTimeout": "1m"}, None),
        ({"drainTimeout": "1m"}, {}, {"drainTimeout": None}),
        (*[{"disableHealthTimeout": each} for each in (True, False, False)],),
        ({"nodeConditions": "A"}, {"nodeConditions": "A,B"}, {"nodeConditions": "A,B"}),
        ({"providerID": "x"}, {}, None),
        ({"class": {"kind": "K", "name": "old"}}, {"class": {"kind": "K", "name": "new"}}, None),
        ({}, {"class": {"kind": "K", "name": "new"}}, {"class": {"kind": "K"}}),
        (
            of_node({"a": "1", "b": "2"}),
            of_node({"a": "3"}, annotations={"c": "4"}),
            of_node({"a": "3", "b": None}, annotations={"c": "4"}),
        ),
        (of_node({"a": "1"}), of_node({"a": "1"}, creationTimestamp=None), None),
        ({"nodeTemplate": {"spec": {"taints": []}}}, {}, {"nodeTemplate": None}),
    ],
)
def test_push_patch_contains_only_changed_template_fields(
    has: Any, template: Any, expected: Any
) -> None:
    found = CODEC.push_patch(machine(spec=has), machine_set(template={"spec": template}))
    assert (found or {}).get("spec") == expected
    if found is not None:
        assert found["metadata"] == {"uid": "u", "resourceVersion": "7"}
