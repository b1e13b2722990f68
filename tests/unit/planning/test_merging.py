"""The copy applies our patches as an API server does; here the built-in one."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from ccm.cloud.types import Ingress, InstanceMetadata, InstanceState, Power, Status, address
from ccm.controllers.node import plan as nodes
from ccm.controllers.nodelifecycle import plan as lifecycle
from ccm.controllers.route import plan as routes
from ccm.controllers.service import plan as services
from ccm.model import names
from ccm.planning import merging
from ccm.sandbox.apiserver import patches, schema
from ccm.testing import builders

F = names.FINALIZER_LOAD_BALANCER
NOW = "2026-01-01T00:00:00Z"
NEW = builders.node(
    "n",
    taints=[builders.uninitialized_taint(), builders.shutdown_taint()],
    labels={"a": "b"},
    addresses=[address("Hostname", "n"), address("InternalIP", "10.0.0.9")],
)
METADATA = InstanceMetadata(
    provider_id="x://1",
    instance_type="small",
    addresses=(address("InternalIP", "10.0.0.1"), address("InternalIP", "10.0.0.2")),
    zone="z",
    region="r",
    additional_labels={"rack": "7"},
)
ROUTED = builders.node("n", labels={names.LABEL_ZONE_BETA: "z", names.LABEL_ZONE: "old"})
OFF = InstanceState(exists=True, power=Power.SHUTDOWN)
BARE, OURS = builders.service(), builders.service(finalizers=["example.com/keep", F])
ADDRESS = Status(ingress=(Ingress(ip="192.0.2.1"), Ingress(hostname="lb.example.com")))


@pytest.mark.parametrize(
    ("kind", "obj", "patch"),
    [
        ("Node", NEW, nodes.address_patch(NEW, METADATA.addresses)),
        ("Node", NEW, nodes.initialization(NEW, METADATA).patch),
        ("Node", ROUTED, nodes.label_patch(ROUTED)),
        (
            "Node",
            builders.node("n", ready="Unknown"),
            lifecycle.taint_patch(builders.node("n", ready="Unknown"), OFF),
        ),
        ("Node", NEW, lifecycle.taint_patch(NEW, None)),
        ("Node", NEW, routes.condition_patch(NEW, created=True, now=NOW)),
        ("Service", BARE, services.finalizer_patch(BARE)),
        (
            "Service",
            builders.service(finalizers=["example.com/keep"]),
            services.finalizer_patch(builders.service(finalizers=["example.com/keep"])),
        ),
        ("Service", OURS, services.removal_patch(OURS)),
        (
            "Service",
            builders.service(finalizers=[F]),
            services.removal_patch(builders.service(finalizers=[F])),
        ),
        ("Service", OURS, services.status_patch(OURS, ADDRESS)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_kind_of_patch_that_the_daemon_writes(kind: str, obj: Any, patch: Any) -> None:
    body = msgspec.to_builtins(obj)
    content = {**patch, "metadata": _free(patch["metadata"])}

    ours = msgspec.convert(merging.strategic(body, content), type(obj))
    theirs = patches.strategic(schema.kubernetes()[kind], copy.deepcopy(body), content)

    assert _sorted(ours) == _sorted(msgspec.convert(theirs, type(obj)))
    assert ours != obj


def test_a_list_of_conditions_is_merged_by_their_type() -> None:
    present = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "a"}]}}
    wanted = {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "New"}]}}

    assert merging.strategic(present, wanted)["status"]["conditions"] == [
        {"type": "Ready", "status": "False", "reason": "a"},
        {"type": "New"},
    ]


def test_a_merge_patch_takes_away_what_is_null() -> None:
    assert merging.merge({"data": {"a": "1", "b": "2"}}, {"data": {"a": None, "c": "3"}}) == {
        "data": {"b": "2", "c": "3"}
    }


def _free(metadata: Any) -> dict[str, Any]:
    return {key: one for key, one in metadata.items() if key not in ("uid", "resourceVersion")}


def _sorted(obj: Any) -> Any:
    body = msgspec.to_builtins(obj)
    conditions = body.get("status", {}).get("conditions", [])
    conditions.sort(key=lambda one: one["type"])
    body["metadata"]["finalizers"] = sorted(body["metadata"].get("finalizers") or ())
    return body
