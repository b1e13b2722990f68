"""The public face of the SDK: exact names, documented, and cheap to import."""

from __future__ import annotations

import types

import msgspec

from ccm import cloud


def test_all_equals_what_can_be_imported() -> None:
    found = {
        name
        for name, value in vars(cloud).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }

    assert found == set(cloud.__all__)
    assert len(set(cloud.__all__)) == len(cloud.__all__)


def test_every_field_of_a_value_is_documented() -> None:
    from dataclasses import fields

    kinds = (cloud.Cloud, cloud.InstanceMetadata, cloud.InstanceRecord, cloud.Limits)
    machines = (cloud.Identity, cloud.MachineRequest, cloud.MachineInfo, cloud.MachineRecord)
    for kind in (*kinds, *machines, cloud.LoadBalancerRecord):
        doc = kind.__doc__ or ""
        assert [f.name for f in fields(kind) if f"{f.name}: " not in doc] == [], kind


def test_objects_are_written_with_the_names_of_the_api_and_without_defaults() -> None:
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
