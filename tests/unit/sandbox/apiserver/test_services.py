"""Services as a client of the built-in server sees them, without HTTP.

That the real server does the same is checked, case by case, in `tests/kubectl`.
"""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from ccm.sandbox.apiserver import allocate, errors, kinds, query
from tests.unit.sandbox.apiserver import requests
from tests.unit.sandbox.apiserver.requests import at

P80 = [{"port": 80}]
LB: dict[str, Any] = {"type": "LoadBalancer", "ports": P80}
NUMBERED: dict[str, Any] = {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30100}]}
TRIAL = query.WriteOptions(dry_run="All")


class Services(requests.Requests):
    """Requests about the Services of one namespace."""

    def add(
        self, name: str = "s", options: query.WriteOptions = requests.PLAIN, **spec: Any
    ) -> Any:
        return self.create(kinds.SERVICES, name, options, spec=spec)["spec"]

    def change(self, part: str = "", **patch: Any) -> Any:
        return self.patch(at(kinds.SERVICES, "s", part), patch).entry.body()

    def spec(self, **spec: Any) -> Any:
        return self.change(spec=spec)["spec"]

    def remove(self, name: str = "s") -> None:
        self.delete(at(kinds.SERVICES, name))


@pytest.fixture
def services() -> Services:
    return Services()


def told(error: pytest.ExceptionInfo[errors.ApiError]) -> list[tuple[str, str]]:
    """Field and text of each fault."""
    assert error.value.code == 422
    assert error.value.details is not None
    return [(cause["field"], cause["message"]) for cause in error.value.details["causes"]]


# --- what is filled in ---------------------------------------------------------------


def test_a_plain_service_gets_an_address_and_its_defaults(services: Services) -> None:
    spec = services.add(ports=P80)

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
    spec = services.add(**LB)

    assert spec["ports"][0]["nodePort"] in allocate.NODE_PORTS
    assert spec["externalTrafficPolicy"] == "Cluster"
    assert spec["allocateLoadBalancerNodePorts"] is True
    assert "healthCheckNodePort" not in spec


def test_the_policy_local_brings_a_port_for_health_checks(services: Services) -> None:
    services.add(**LB)

    port = services.spec(externalTrafficPolicy="Local")["healthCheckNodePort"]

    assert port in allocate.NODE_PORTS
    assert services.spec(selector={"a": "b"})["healthCheckNodePort"] == port
    with pytest.raises(errors.ApiError, match="may not change once set"):
        services.spec(healthCheckNodePort=port + 1)
    assert "healthCheckNodePort" not in services.spec(externalTrafficPolicy="Cluster")


def test_a_session_affinity_lasts_three_hours(services: Services) -> None:
    spec = services.add(ports=P80, sessionAffinity="ClientIP")
    assert spec["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}

    assert "sessionAffinityConfig" not in services.spec(sessionAffinity="None")


# --- numbers are given once ----------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        (NUMBERED, "spec.ports[0].nodePort"),
        ({"ports": P80, "clusterIP": "10.96.0.9"}, "spec.clusterIPs"),
    ],
)
def test_a_wished_number_is_given_once_and_free_after_deletion(
    services: Services, wish: dict[str, Any], field: str
) -> None:
    services.add(**wish)

    with pytest.raises(errors.ApiError) as error:
        services.add("t", **wish)
    services.remove()

    ((found, text),) = told(error)
    assert (found, "already allocated" in text) == (field, True)
    assert services.add("t", **wish)


def test_numbers_are_held_until_the_last_finalizer_has_gone(services: Services) -> None:
    services.add(**NUMBERED)
    services.change(metadata={"finalizers": ["a.b/c"]})
    services.remove()
    with pytest.raises(errors.ApiError, match="already allocated"):
        services.add("t", **NUMBERED)

    services.change(metadata={"finalizers": None})

    assert services.add("t", **NUMBERED)


def test_numbers_are_free_when_the_namespace_has_gone(services: Services) -> None:
    services.create(kinds.NAMESPACES, "x")
    services.create(kinds.SERVICES, "s", metadata={"namespace": "x"}, spec=NUMBERED)

    services.delete(at(kinds.NAMESPACES, "x"))

    assert services.add(**NUMBERED)


def test_a_trial_run_and_a_refused_service_hold_nothing(services: Services) -> None:
    assert services.add(options=TRIAL, **NUMBERED)["ports"][0]["nodePort"] == 30100
    with pytest.raises(errors.ApiError, match="sessionAffinity"):
        services.add(**NUMBERED, sessionAffinity="Maybe")

    assert services.add(**NUMBERED)


def test_a_restarted_server_knows_what_is_held(services: Services) -> None:
    services.add(**NUMBERED)

    again = Services(services.store)

    with pytest.raises(errors.ApiError, match="already allocated"):
        again.add("t", **NUMBERED)


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
        services.add(**spec)

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
    services.add(**spec)

    with pytest.raises(errors.ApiError) as error:
        services.spec(**change)

    assert told(error)[0][0] == field


# --- the status ----------------------------------------------------------------------


def test_an_address_of_a_balancer_is_a_vip_unless_told_otherwise(services: Services) -> None:
    services.add(**LB)
    points = [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2", "ipMode": "Proxy"}, {"hostname": "a.b"}]

    body = services.change(status={"loadBalancer": {"ingress": points}}, part="status")

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
    services.add(**spec)

    with pytest.raises(errors.ApiError) as error:
        services.change(status={"loadBalancer": {"ingress": [point]}}, part="status")

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
    services.add(**spec)

    assert any(text in warning for warning in services.warnings)


def test_the_api_server_is_a_service_itself(services: Services) -> None:
    services.api.publish(6443)
    own = services.api.get(at(kinds.SERVICES, "kubernetes")).body()

    assert own["spec"]["clusterIP"] == "10.96.0.1"
    assert own["spec"]["ports"][0]["targetPort"] == 6443
    assert own["metadata"]["labels"] == {"component": "apiserver", "provider": "kubernetes"}

    services.remove("kubernetes")
    again = services.api.get(at(kinds.SERVICES, "kubernetes")).body()
    assert again["metadata"]["uid"] != own["metadata"]["uid"]
    assert again["spec"] == own["spec"]


def test_a_restart_at_another_port_is_told_by_its_service(services: Services) -> None:
    services.api.publish(6443)
    before = services.api.get(at(kinds.SERVICES, "kubernetes")).body()["metadata"]["uid"]

    again = Services(services.store)
    again.api.publish(6444)

    own = again.api.get(at(kinds.SERVICES, "kubernetes")).body()
    assert own["metadata"]["uid"] == before
    assert own["spec"]["ports"][0]["targetPort"] == 6444
