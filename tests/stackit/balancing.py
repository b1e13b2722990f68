"""What the tests of load balancers share: Services, what the cloud holds, every annotation."""

from __future__ import annotations

from typing import Any

from ccm import cloud
from ccm.testing.builders import service as build_service
from providers.stackit import service_annotations as ann
from tests.stackit.harness import StackitHarness

UID = "0b6dbe96-bb3c-4d4c-b1e0-4c0ed8a21f0d"
NAME = f"k8s-svc-{UID}-web"
OTHER_NETWORK = "2028e5d4-af4f-45e2-98df-502be37a4317"
FLAVOR = "cd49f4fd-1e48-497f-91ad-79894c8b95e4"

METRICS = {
    "STACKIT_REMOTEWRITE_ENDPOINT": "https://push.example.com",
    "STACKIT_REMOTEWRITE_USER": "me",
    "STACKIT_REMOTEWRITE_PASSWORD": "hush-hush-hush",
}


def service(old: dict[str, str] | None = None, /, **new: str) -> cloud.Service:
    """A Service; `internal_lb="true"` is the annotation `lb.stackit.cloud/internal-lb`."""
    given = {f"{ann.PREFIX}{key.replace('_', '-')}": text for key, text in new.items()}
    given |= {f"{ann.LEGACY}{key}": text for key, text in (old or {}).items()}
    return build_service(uid=UID, annotations=given)


def only(harness: StackitHarness) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = harness.service.cloud.balancers.values()
    return found


def at(thing: Any, path: str) -> Any:
    for word in path.split("."):
        thing = thing[int(word)] if word.isdigit() else thing.get(word)
    return thing


EFFECTS: list[tuple[cloud.Service, str, Any]] = [
    (service(), "options.privateNetworkOnly", False),
    (service(), "options.ephemeralAddress", True),
    (service(), "planId", "p10"),
    (service(), "listeners.0.tcp.idleTimeout", "3600s"),
    (service(internal_lb="true"), "options.privateNetworkOnly", True),
    (service(external_address="192.0.2.7"), "externalAddress", "192.0.2.7"),
    (service(tcp_proxy_protocol="true"), "listeners.0.protocol", "PROTOCOL_TCP_PROXY"),
    (
        service(tcp_proxy_protocol="true", tcp_proxy_protocol_ports_filter="443"),
        "listeners.0.protocol",
        "PROTOCOL_TCP",
    ),
    (service(tcp_idle_timeout="15m"), "listeners.0.tcp.idleTimeout", "900s"),
    (service(service_plan_id="p250"), "planId", "p250"),
    (
        service(session_persistence_with_source_ip="true"),
        "targetPools.0.sessionPersistence.useSourceIpAddress",
        True,
    ),
    (service(listener_network=OTHER_NETWORK), "networks.1.networkId", OTHER_NETWORK),
    (service({"internalLB": "true"}), "options.privateNetworkOnly", True),
    (service({"existingFloatingIP": "192.0.2.7"}), "externalAddress", "192.0.2.7"),
    (
        service({"loadBalancerSourceRanges": "10.0.0.0/8, 192.0.2.0/24"}),
        "options.accessControl.allowedSourceRanges",
        ["10.0.0.0/8", "192.0.2.0/24"],
    ),
    (service({"tcpProxyProtocol": "1"}), "listeners.0.protocol", "PROTOCOL_TCP_PROXY"),
    (
        service({"tcpProxyProtocolPortsFilter": "443"}, tcp_proxy_protocol="true"),
        "listeners.0.protocol",
        "PROTOCOL_TCP",
    ),
    (service({"tcpIdleTimeout": "90s"}), "listeners.0.tcp.idleTimeout", "90s"),
    (service({"flavorId": FLAVOR}), "planId", "p50"),
]
