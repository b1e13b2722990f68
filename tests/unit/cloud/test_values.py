"""Public names of the SDK and its values: names, addresses, provider IDs, owners."""

from __future__ import annotations

import math
import types

import msgspec
import pytest

from ccm import cloud
from ccm.cloud import Cloud, InvalidArgument, Limits, parse_provider_id
from ccm.cloud.helpers import is_label_value, is_pod_cidr, sanitize_label_value
from ccm.cloud.lookup import NodeOwnership
from ccm.model import Node
from ccm.model.cidr import parse_ranges
from ccm.runtime import object_status
from ccm.testing.builders import node


def test_deadline_for_an_unknown_operation_lists_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"unknown operation ensure, list; known are .*list_routes"
    ):
        Limits(deadlines_s={"list": 5, "ensure": 1, "list_routes": 3})


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_deadline_must_be_positive_and_finite(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Limits(deadlines_s={"list_routes": seconds})


@pytest.mark.parametrize(
    ("provider_id", "said"),
    [
        ("fake://1", ""),
        ("", ""),
        ("fake://bm-1", "belongs to another manager (this provider ignores IDs that begin with "),
        ("other://bm-1", "belongs to another cloud (expected: fake://)"),
    ],
)
def test_node_with_an_ignored_provider_id_prefix_is_foreign(provider_id: str, said: str) -> None:
    ownership = NodeOwnership.for_cloud(Cloud(name="fake", foreign_ids=("fake://bm-",)), "")
    found = node(provider_id=provider_id)

    assert ownership.is_foreign(found) is bool(said)
    assert said in object_status.foreign_reason(found, ownership)
    assert bool(object_status.foreign_reason(found, ownership)) is bool(said)


@pytest.mark.parametrize(
    "provider_id",
    [
        "",
        "i-1",
        "acme:i-1",
        "acme:/i-1",
        "acme://",
        "acme:///",
        "acme2://i-1",
        "ACME://i-1",
        "://1",
    ],
)
def test_malformed_provider_id_error_shows_the_expected_form(provider_id: str) -> None:
    with pytest.raises(InvalidArgument, match="expected acme://<id>") as caught:
        parse_provider_id(provider_id, "acme")

    assert repr(provider_id) in str(caught.value)


@pytest.mark.parametrize(
    ("selector", "of", "foreign"),
    [
        ("", node(provider_id="fake://1"), False),
        ("", node(), False),
        ("", node(provider_id="no-scheme"), False),
        ("", node(provider_id="other://1"), True),
        ("own", node(provider_id="fake://1"), True),
        ("own", node(labels={"own": ""}), False),
        ("own", node(provider_id="other://1", labels={"own": ""}), True),
        ("cloud in (a,b),!cellar", node(labels={"cloud": "b"}), False),
        ("cloud in (a,b),!cellar", node(labels={"cloud": "b", "cellar": ""}), True),
    ],
)
def test_provider_id_scheme_and_node_selector_decide_foreign_nodes(
    selector: str, of: Node, foreign: bool
) -> None:
    ownership = NodeOwnership.from_flag(("fake",), selector)

    assert ownership.is_foreign(of) is foreign
    assert ownership.has_selector is bool(selector)


def test_sdk_all_lists_every_public_name() -> None:
    found = {
        name
        for name, value in vars(cloud).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }

    assert found == set(cloud.__all__)
    assert len(set(cloud.__all__)) == len(cloud.__all__)


def test_every_field_of_the_sdk_values_is_documented() -> None:
    from dataclasses import fields

    kinds = (cloud.Cloud, cloud.InstanceMetadata, cloud.InstanceRecord, cloud.Limits)
    machines = (cloud.Identity, cloud.MachineRequest, cloud.MachineInfo, cloud.MachineRecord)
    for kind in (*kinds, *machines, cloud.LoadBalancerRecord):
        doc = kind.__doc__ or ""
        assert [f.name for f in fields(kind) if f"{f.name}: " not in doc] == [], kind


def test_sdk_objects_encode_with_api_names_and_without_defaults() -> None:
    spec = cloud.ServiceSpec(load_balancer_source_ranges=[], ip_families=None)
    service = cloud.Service(metadata=cloud.ObjectMeta(name="web", labels={"a": "b"}), spec=spec)
    addressed = msgspec.structs.replace(
        service,
        status=cloud.ServiceStatus(
            load_balancer=cloud.LoadBalancerStatus(
                ingress=[cloud.LoadBalancerIngress(ip="192.0.2.1")]
            )
        ),
    )

    assert msgspec.to_builtins(addressed) == {
        "metadata": {"name": "web", "labels": {"a": "b"}},
        "spec": {"loadBalancerSourceRanges": []},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    }
    assert msgspec.json.decode(msgspec.json.encode(service), type=cloud.Service) == service
    null = b'{"metadata": {"name": "web"}, "spec": {"ipFamilies": null, "unheard": "of"}}'
    assert msgspec.json.encode(msgspec.json.decode(null, type=cloud.Service)) == (
        b'{"metadata":{"name":"web"},"spec":{}}'
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("m1.small", "m1.small"),
        ("", ""),
        ("_az 1 (old)_", "az-1-old"),
        ("ä", ""),
        ("a" * 62 + "- b", "a" * 62),
    ],
)
def test_any_text_becomes_a_label_value(text: str, value: str) -> None:
    found = sanitize_label_value(text)

    assert (found, is_label_value(found)) == (value, True)


@pytest.mark.parametrize(
    ("text", "is_inside"),
    [
        ("10.244.3.0/24", True),
        ("10.244.0.0/16", True),
        ("10.0.0.0/8", False),
        ("10.245.0.0/24", False),
        ("fd00:1::/64", True),
        ("fd00:2::/64", False),
        ("no CIDR", False),
    ],
)
def test_only_cidrs_inside_the_pod_ranges_are_pod_cidrs(text: str, is_inside: bool) -> None:
    assert is_pod_cidr(text, parse_ranges("10.244.0.0/16,fd00:1::/48")) is is_inside
    assert is_pod_cidr(text, ())
