"""Service: wire names, and reading what an API server sends."""

from __future__ import annotations

import msgspec

from ccm.kube.resources import SERVICES
from ccm.model import Service, ServicePort, ServiceSpec
from ccm.model.service import (
    ClientIPConfig,
    LoadBalancerIngress,
    LoadBalancerStatus,
    PortStatus,
    ServiceStatus,
    SessionAffinityConfig,
)

SENT = {
    "metadata": {"name": "web", "namespace": "default", "uid": "u", "finalizers": ["f"]},
    "spec": {
        "type": "LoadBalancer",
        "ports": [
            {
                "name": "http",
                "protocol": "UDP",
                "appProtocol": "h2c",
                "port": 80,
                "targetPort": "web",
                "nodePort": 30080,
            }
        ],
        "clusterIP": "10.0.0.1",
        "clusterIPs": ["10.0.0.1", "fd00::1"],
        "externalIPs": ["192.0.2.1"],
        "ipFamilies": ["IPv4", "IPv6"],
        "ipFamilyPolicy": "PreferDualStack",
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "externalTrafficPolicy": "Local",
        "internalTrafficPolicy": "Cluster",
        "healthCheckNodePort": 30081,
        "loadBalancerIP": "192.0.2.2",
        "loadBalancerSourceRanges": ["10.0.0.0/8"],
        "loadBalancerClass": "mine",
        "allocateLoadBalancerNodePorts": False,
    },
    "status": {
        "loadBalancer": {
            "ingress": [
                {
                    "ip": "192.0.2.3",
                    "hostname": "lb.example",
                    "ipMode": "Proxy",
                    "ports": [{"port": 80, "protocol": "TCP", "error": "Busy"}],
                }
            ]
        }
    },
}


def test_every_field_has_its_name_on_the_wire() -> None:
    service = msgspec.convert(SENT, Service)

    assert msgspec.to_builtins(service) == SENT
    assert service.spec == ServiceSpec(
        type="LoadBalancer",
        ports=[
            ServicePort(
                name="http",
                protocol="UDP",
                app_protocol="h2c",
                port=80,
                target_port="web",
                node_port=30080,
            )
        ],
        cluster_ip="10.0.0.1",
        cluster_ips=["10.0.0.1", "fd00::1"],
        external_ips=["192.0.2.1"],
        ip_families=["IPv4", "IPv6"],
        ip_family_policy="PreferDualStack",
        session_affinity="ClientIP",
        session_affinity_config=SessionAffinityConfig(client_ip=ClientIPConfig(timeout_seconds=60)),
        external_traffic_policy="Local",
        internal_traffic_policy="Cluster",
        health_check_node_port=30081,
        load_balancer_ip="192.0.2.2",
        load_balancer_source_ranges=["10.0.0.0/8"],
        load_balancer_class="mine",
        allocate_load_balancer_node_ports=False,
    )
    ingress = LoadBalancerIngress(
        ip="192.0.2.3",
        hostname="lb.example",
        ip_mode="Proxy",
        ports=[PortStatus(port=80, protocol="TCP", error="Busy")],
    )
    assert service.status == ServiceStatus(load_balancer=LoadBalancerStatus(ingress=[ingress]))


def test_nulls_and_strange_fields_are_read() -> None:
    sent = (
        b'{"metadata":{"name":"x","namespace":"n","finalizers":null,"managedFields":[]},'
        b'"spec":{"ports":null,"trafficDistribution":"PreferClose"},'
        b'"status":{"loadBalancer":{"ingress":null},"conditions":[]}}'
    )

    service = SERVICES.one.decode(sent)

    assert (service.ports, service.ingress, service.finalizers) == ((), (), ())
    assert (service.type, service.is_deleting, service.key) == ("", False, "n/x")


def test_a_reference_names_kind_and_namespace() -> None:
    reference = msgspec.convert(SENT, Service).reference

    assert (reference.kind, reference.api_version) == ("Service", "v1")
    assert (reference.namespace, reference.name, reference.uid) == ("default", "web", "u")
    assert reference.resource_version == ""


def test_services_live_in_namespaces() -> None:
    assert SERVICES.path(namespace="a", name="b", subresource="status") == (
        "/api/v1/namespaces/a/services/b/status"
    )
