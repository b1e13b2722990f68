"""Services as a client of the built-in server sees them, without HTTP.

That the real server does the same is checked, case by case, in `tests/kubectl`.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import pytest

from ccm.sandbox.apiserver import allocate, api, errors, kinds, query, routes
from ccm.sandbox.apiserver import store as stores

P80 = [{"port": 80}]
LB: dict[str, Any] = {"type": "LoadBalancer", "ports": P80}
NUMBERED: dict[str, Any] = {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30100}]}
TWO = (ipaddress.ip_network("10.96.0.0/16"), ipaddress.ip_network("fd00::/112"))
PLAIN = query.WriteOptions()
TRIAL = query.WriteOptions(dry_run="All")


class Services:
    """Requests about the Services of one namespace."""

    def __init__(
        self,
        store: stores.Store | None = None,
        ranges: tuple[allocate.Network, ...] = allocate.CLUSTER_IPS,
    ) -> None:
        self.store = store or stores.Store()
        self.api = api.Api(self.store, cluster_ips=ranges)
        self.warnings: tuple[str, ...] = ()

    def create(
        self, name: str = "s", options: query.WriteOptions = PLAIN, **spec: Any
    ) -> dict[str, Any]:
        raw = json.dumps({"metadata": {"name": name}, "spec": spec}).encode()
        written = self.api.create(_target(""), raw, "application/json", options)
        self.warnings = written.warnings
        return written.entry.body()

    def change(self, name: str = "s", subresource: str = "", **patch: Any) -> dict[str, Any]:
        raw = json.dumps(patch).encode()
        target = _target(name, subresource)
        return self.api.patch(target, raw, api.MERGE_PATCH, PLAIN).entry.body()

    def spec(self, name: str = "s", **spec: Any) -> dict[str, Any]:
        changed: dict[str, Any] = self.change(name, spec=spec)["spec"]
        return changed

    def delete(self, name: str = "s") -> None:
        self.api.delete(_target(name), query.DeleteOptions())


def _target(name: str, subresource: str = "") -> routes.Target:
    return routes.Target(
        kind=kinds.SERVICES, namespace="default", name=name, subresource=subresource
    )


@pytest.fixture
def services() -> Services:
    return Services()


@pytest.fixture
def dual() -> Services:
    return Services(ranges=TWO)


def told(error: pytest.ExceptionInfo[errors.ApiError]) -> list[tuple[str, str]]:
    """Field and text of each fault."""
    assert error.value.code == 422
    assert error.value.details is not None
    return [(cause["field"], cause["message"]) for cause in error.value.details["causes"]]


# --- what is filled in ---------------------------------------------------------------


def test_a_plain_service_gets_an_address_and_its_defaults(services: Services) -> None:
    spec = services.create(ports=P80)["spec"]

    address = spec.pop("clusterIP")
    assert ipaddress.ip_address(address) in allocate.CLUSTER_IPS[0]
    assert spec == {
        "type": "ClusterIP",
        "clusterIPs": [address],
        "ipFamilies": ["IPv4"],
        "ipFamilyPolicy": "SingleStack",
        "internalTrafficPolicy": "Cluster",
        "sessionAffinity": "None",
        "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
    }
    assert services.warnings == ()


def test_a_load_balancer_gets_a_node_port_too(services: Services) -> None:
    spec = services.create(**LB)["spec"]

    assert spec["ports"][0]["nodePort"] in allocate.NODE_PORTS
    assert spec["externalTrafficPolicy"] == "Cluster"
    assert spec["allocateLoadBalancerNodePorts"] is True
    assert "healthCheckNodePort" not in spec


def test_the_policy_local_brings_a_port_for_health_checks(services: Services) -> None:
    services.create(**LB)

    port = services.spec(externalTrafficPolicy="Local")["healthCheckNodePort"]

    assert port in allocate.NODE_PORTS
    assert services.spec(selector={"a": "b"})["healthCheckNodePort"] == port
    with pytest.raises(errors.ApiError, match="may not change once set"):
        services.spec(healthCheckNodePort=port + 1)
    assert "healthCheckNodePort" not in services.spec(externalTrafficPolicy="Cluster")


def test_a_session_affinity_lasts_three_hours(services: Services) -> None:
    spec = services.create(ports=P80, sessionAffinity="ClientIP")["spec"]
    assert spec["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}

    assert "sessionAffinityConfig" not in services.spec(sessionAffinity="None")


# --- numbers are given once ----------------------------------------------------------


def test_a_wished_number_is_given_once(services: Services) -> None:
    services.create(**NUMBERED, clusterIP="10.96.0.9")

    with pytest.raises(errors.ApiError) as port:
        services.create("t", **NUMBERED)
    with pytest.raises(errors.ApiError) as address:
        services.create("t", ports=P80, clusterIP="10.96.0.9")

    ((port_field, port_text),) = told(port)
    ((address_field, address_text),) = told(address)
    assert (port_field, address_field) == ("spec.ports[0].nodePort", "spec.clusterIPs")
    assert "already allocated" in port_text
    assert "already allocated" in address_text


def test_numbers_are_free_after_deletion(services: Services) -> None:
    services.create(**NUMBERED, clusterIP="10.96.0.9")
    services.delete()

    assert services.create("t", **NUMBERED, clusterIP="10.96.0.9")


def test_numbers_are_held_until_the_last_finalizer_has_gone(services: Services) -> None:
    services.create(**NUMBERED)
    services.change(metadata={"finalizers": ["a.b/c"]})
    services.delete()
    with pytest.raises(errors.ApiError, match="already allocated"):
        services.create("t", **NUMBERED)

    services.change(metadata={"finalizers": None})

    assert services.create("t", **NUMBERED)


def test_numbers_are_free_when_the_namespace_has_gone(services: Services) -> None:
    space = json.dumps({"metadata": {"name": "x"}}).encode()
    services.api.create(routes.Target(kind=kinds.NAMESPACES), space, "application/json", PLAIN)
    inside = routes.Target(kind=kinds.SERVICES, namespace="x")
    raw = json.dumps({"metadata": {"name": "s"}, "spec": NUMBERED}).encode()
    services.api.create(inside, raw, "application/json", PLAIN)

    services.api.delete(routes.Target(kind=kinds.NAMESPACES, name="x"), query.DeleteOptions())

    assert services.create(**NUMBERED)


def test_a_trial_run_holds_nothing(services: Services) -> None:
    assert services.create(options=TRIAL, **NUMBERED)["spec"]["ports"][0]["nodePort"] == 30100

    assert services.create(**NUMBERED)


def test_a_refused_service_holds_nothing(services: Services) -> None:
    with pytest.raises(errors.ApiError, match="sessionAffinity"):
        services.create(**NUMBERED, sessionAffinity="Maybe")

    assert services.create(**NUMBERED)


def test_a_restarted_server_knows_what_is_held(services: Services) -> None:
    services.create(**NUMBERED)

    again = Services(services.store)

    with pytest.raises(errors.ApiError, match="already allocated"):
        again.create("t", **NUMBERED)


# --- what is refused -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "field", "text"),
    [
        ({}, "spec.ports", "Required value"),
        ({"type": "Foo", "ports": P80}, "spec.type", "Unsupported value"),
        ({"type": "ExternalName"}, "spec.externalName", "Required value"),
        ({"ports": P80, "clusterIP": "x"}, "spec.clusterIPs", "valid IP address"),
        (LB | {"clusterIP": "None"}, "spec.clusterIPs", "may not be 'None'"),
        ({"ports": [{"port": 1, "nodePort": 30000}]}, "spec.ports[0].nodePort", "Forbidden"),
        ({"ports": [{"port": 1, "targetPort": "-"}]}, "spec.ports[0].targetPort", "letter"),
        ({"ports": [{"port": 1, "protocol": "x"}]}, "spec.ports[0].protocol", "SCTP"),
        (LB | {"loadBalancerSourceRanges": ["x"]}, "spec.loadBalancerSourceRanges[0]", "CIDR"),
        ({"ports": P80, "loadBalancerClass": "a"}, "spec.loadBalancerClass", "only be used"),
        ({"ports": P80, "ipFamilies": ["IPv6"]}, "spec.ipFamilies", "not configured"),
        (
            {"ports": P80, "ipFamilyPolicy": "RequireDualStack"},
            "spec.ipFamilyPolicy",
            "not configured for dual-stack",
        ),
    ],
)
def test_a_wrong_service_is_refused(
    services: Services, spec: dict[str, Any], field: str, text: str
) -> None:
    with pytest.raises(errors.ApiError) as error:
        services.create(**spec)

    faults = told(error)
    assert faults[0][0] == field
    assert any(text in message for _, message in faults)


@pytest.mark.parametrize(
    ("spec", "change", "field"),
    [
        (LB, {"clusterIP": "10.96.7.7"}, "spec.clusterIPs"),
        (LB, {"loadBalancerClass": "a.b/c"}, "spec.loadBalancerClass"),
        (LB | {"loadBalancerClass": "a"}, {"loadBalancerClass": None}, "spec.loadBalancerClass"),
        ({"ports": P80}, {"ipFamilies": ["IPv6"]}, "spec.clusterIPs"),
    ],
)
def test_some_fields_never_change(
    services: Services, spec: dict[str, Any], change: dict[str, Any], field: str
) -> None:
    services.create(**spec)

    with pytest.raises(errors.ApiError) as error:
        services.spec(**change)

    assert told(error)[0][0] == field


# --- the status ----------------------------------------------------------------------


def test_an_address_of_a_balancer_is_a_vip_unless_told_otherwise(services: Services) -> None:
    services.create(**LB)
    points = [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "ipMode": "Proxy"}, {"hostname": "a.b"}]

    body = services.change(status={"loadBalancer": {"ingress": points}}, subresource="status")

    assert body["status"]["loadBalancer"]["ingress"] == [
        {**points[0], "ipMode": "VIP"},
        *points[1:],
    ]


@pytest.mark.parametrize(
    ("spec", "point", "field"),
    [
        ({"ports": P80}, {"ip": "192.0.2.1"}, "status.loadBalancer.ingress"),
        (LB, {"ip": "x"}, "status.loadBalancer.ingress[0].ip"),
        (LB, {"hostname": "192.0.2.1"}, "status.loadBalancer.ingress[0].hostname"),
        (LB, {"ip": "192.0.2.1", "ipMode": "x"}, "status.loadBalancer.ingress[0].ipMode"),
        (LB, {"hostname": "a", "ipMode": "VIP"}, "status.loadBalancer.ingress[0].ipMode"),
    ],
)
def test_a_wrong_status_is_refused(
    services: Services, spec: dict[str, Any], point: dict[str, Any], field: str
) -> None:
    services.create(**spec)

    with pytest.raises(errors.ApiError) as error:
        services.change(status={"loadBalancer": {"ingress": [point]}}, subresource="status")

    assert [one for one, _ in told(error)] == [field]


# --- warnings and the server's own Service --------------------------------------------


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"ports": P80, "externalIPs": ["192.0.2.1"]}, "externalIPs is deprecated"),
        ({"ports": P80, "externalName": "a.b"}, "externalName is ignored"),
    ],
)
def test_what_has_no_effect_is_accepted_with_a_warning(
    services: Services, spec: dict[str, Any], text: str
) -> None:
    services.create(**spec)

    assert any(text in warning for warning in services.warnings)


def test_the_api_server_is_a_service_itself(services: Services) -> None:
    services.api.publish(6443)
    own = services.api.get(_target("kubernetes")).body()

    assert own["spec"]["clusterIP"] == "10.96.0.1"
    assert own["spec"]["ports"][0]["targetPort"] == 6443
    assert own["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}

    services.delete("kubernetes")
    again = services.api.get(_target("kubernetes")).body()
    assert again["metadata"]["uid"] != own["metadata"]["uid"]
    assert again["spec"] == own["spec"]


def test_a_restart_at_another_port_is_told_by_its_service(services: Services) -> None:
    services.api.publish(6443)
    before = services.api.get(_target("kubernetes")).body()["metadata"]["uid"]

    again = Services(services.store)
    again.api.publish(6444)

    own = again.api.get(_target("kubernetes")).body()
    assert own["metadata"]["uid"] == before
    assert own["spec"]["ports"][0]["targetPort"] == 6444
