"""Service: wire names, and reading what an API server sends."""

from __future__ import annotations

import msgspec

from ccm.kube.resources import SERVICES
from ccm.model import ObjectReference, Service, ServicePort

# What has a name of its own on the wire; the others follow one rule. All names are compared with
# those of the official client in the tests of kinds.
SENT = {
    "metadata": {"name": "web", "namespace": "default", "uid": "u"},
    "spec": {
        "ports": [{"port": 80, "targetPort": "web"}],
        "clusterIP": "10.0.0.1",
        "clusterIPs": ["10.0.0.1", "fd00::1"],
        "externalIPs": ["192.0.2.1"],
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "loadBalancerIP": "192.0.2.2",
    },
}


def test_fields_that_follow_no_rule_have_their_name_on_the_wire() -> None:
    service = msgspec.convert(SENT, Service)

    assert msgspec.to_builtins(service) == SENT
    spec = service.spec
    assert (spec.cluster_ip, spec.cluster_ips) == ("10.0.0.1", ["10.0.0.1", "fd00::1"])
    assert (spec.load_balancer_ip, spec.external_ips) == ("192.0.2.2", ["192.0.2.1"])
    assert service.ports == [ServicePort(port=80, target_port="web")]


def test_nulls_and_strange_fields_are_read() -> None:
    sent = (
        b'{"metadata":{"name":"x","namespace":"n","finalizers":null,"managedFields":[]},'
        b'"spec":{"ports":null,"trafficDistribution":"PreferClose"},'
        b'"status":{"loadBalancer":{"ingress":null},"conditions":[]}}'
    )

    service = SERVICES.decode(sent)

    assert (service.ports, service.ingress, service.finalizers) == ((), (), ())
    assert (service.type, service.is_deleting, service.key) == ("", False, "n/x")


def test_a_reference_names_kind_and_namespace() -> None:
    assert msgspec.convert(SENT, Service).reference == ObjectReference(
        kind="Service", api_version="v1", namespace="default", name="web", uid="u"
    )
