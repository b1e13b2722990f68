"""Helpers for the tests of load balancers: Services, state of the cloud, every annotation."""

from __future__ import annotations

from typing import Any

from ccm import cloud
from ccm.testing.builders import service as build_service
from providers.hcloud import service_annotations as ann
from providers.hcloud.testing import balancers as fake_balancers
from providers.hcloud.testing.state import Call
from tests.hcloud.harness import HcloudHarness

UID = "hcloud-ccm/service-uid"


def service(uid: str | None = None, **annotations: str) -> cloud.Service:
    """A Service; `use_private_ip="true"` is the annotation `…/use-private-ip`."""
    given = {f"{ann.PREFIX}{key.replace('_', '-')}": text for key, text in annotations.items()}
    return build_service(uid=uid, annotations=given)


def only(harness: HcloudHarness) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = harness.service.cloud.load_balancers.values()
    return found


def settled(harness: HcloudHarness, **fields: Any) -> dict[str, Any]:
    """An existing load balancer."""
    order = {"name": "theirs", "load_balancer_type": "lb11", "location": "fsn1", **fields}
    _, made = fake_balancers.create(harness.service.cloud, Call(body=order))
    assert made is not None
    found: dict[str, Any] = made["load_balancer"]
    return found


CHECK = {"protocol": "tcp", "port": 30080, "interval": 15, "timeout": 10, "retries": 3}

EFFECTS: list[tuple[dict[str, str], str, Any]] = [
    ({"name": "mine"}, "name", "mine"),
    ({"location": "hel1"}, "location.name", "hel1"),
    ({"type": "lb21"}, "load_balancer_type.name", "lb21"),
    ({"algorithm_type": "LEAST_CONNECTIONS"}, "algorithm.type", "least_connections"),
    (
        {"disable_public_network": "true", "use_private_ip": "true"},
        "public_net.enabled",
        False,
    ),
    ({"use_private_ip": "true"}, "targets.0.use_private_ip", True),
    ({"private_ipv4": "10.0.0.99"}, "private_net.0.ip", "10.0.0.99"),
    ({"private_subnet_ip_range": "10.0.0.0/24"}, "private_net.0.ip", "10.0.0.3"),
    ({"ipv4_rdns": "web.example.com"}, "public_net.ipv4.dns_ptr", "web.example.com"),
    ({"ipv6_rdns": "web.example.com"}, "public_net.ipv6.dns_ptr", "web.example.com"),
    ({"node_selector": "pool=none"}, "targets", []),
    ({"protocol": "http"}, "services.0.protocol", "http"),
    ({"uses_proxyprotocol": "true"}, "services.0.proxyprotocol", True),
    ({"protocol": "http", "http_cookie_name": "C"}, "services.0.http.cookie_name", "C"),
    ({"protocol": "http", "http_cookie_lifetime": "5m"}, "services.0.http.cookie_lifetime", 300),
    ({"protocol": "http", "http_cookie_lifetime": "60"}, "services.0.http.cookie_lifetime", 60),
    ({"protocol": "http", "http_timeout_idle": "40s"}, "services.0.http.timeout_idle", 40),
    ({"protocol": "http", "http_sticky_sessions": "1"}, "services.0.http.sticky_sessions", True),
    ({"health_check_protocol": "http"}, "services.0.health_check.protocol", "http"),
    ({"health_check_port": "8080"}, "services.0.health_check.port", 8080),
    ({"health_check_interval": "7s"}, "services.0.health_check.interval", 7),
    ({"health_check_timeout": "5"}, "services.0.health_check.timeout", 5),
    ({"health_check_retries": "4"}, "services.0.health_check.retries", 4),
    (
        {"health_check_protocol": "http", "health_check_http_path": "/healthz"},
        "services.0.health_check.http.path",
        "/healthz",
    ),
    (
        {"health_check_protocol": "https", "health_check_http_domain": "a.example.com"},
        "services.0.health_check.http",
        {
            "domain": "a.example.com",
            "path": "/",
            "tls": True,
            "status_codes": ["2??", "3??"],
        },
    ),
    (
        {"health_check_protocol": "http", "http_status_codes": "404, 2??"},
        "services.0.health_check.http.status_codes",
        ["2??", "404"],
    ),
    (
        {"health_check_protocol": "http", "health_check_http_validate_certificate": "true"},
        "services.0.health_check.http.tls",
        True,
    ),
]
