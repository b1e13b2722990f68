"""Members follow the nodes whatever the annotations of a Service are."""

from __future__ import annotations

import pytest

from tests.hcloud.inprocess import PORTS, HcloudWorld

pytestmark = pytest.mark.virtual_time

HTTP = {"protocol": "http"}
HTTPS = {"protocol": "https"}
CHECK = {"health_check_protocol": "http"}

BAD: list[dict[str, str]] = [
    {"algorithm_type": "best"},
    {"algorithm_type": ""},
    {"certificate_type": "own", **HTTPS},
    {"certificate_type": "managed", **HTTPS},
    {"certificate_type": "managed", "http_managed_certificate_domains": " , ", **HTTPS},
    {"disable_private_ingress": "perhaps"},
    {"disable_public_network": "perhaps"},
    {"disable_public_network": ""},
    {"health_check_http_domain": "x", "health_check_http_path": "no-slash", **CHECK},
    {"health_check_http_validate_certificate": "perhaps", **CHECK},
    {"health_check_interval": "often"},
    {"health_check_interval": "-15s"},
    {"health_check_interval": "1s"},
    {"health_check_interval": "2h"},
    {"health_check_port": "0"},
    {"health_check_port": "70000"},
    {"health_check_port": "http"},
    {"health_check_protocol": "udp"},
    {"health_check_protocol": ""},
    {"health_check_retries": "-1"},
    {"health_check_retries": "99"},
    {"health_check_retries": "ten"},
    {"health_check_timeout": "-1"},
    {"health_check_timeout": "90s"},
    {"health_check_timeout": "long"},
    {"http_certificates": "gone", **HTTPS},
    {"http_certificates": "4711", **HTTPS},
    {"http_certificates": "mine, ²", **HTTPS},
    {"http_cookie_lifetime": "-5m", **HTTP},
    {"http_cookie_lifetime": "99999999999999", **HTTP},
    {"http_cookie_lifetime": "long", **HTTP},
    {"http_redirect_http": "perhaps", **HTTPS},
    {"http_status_codes": "2xx", **CHECK},
    {"http_status_codes": "900", **CHECK},
    {"http_status_codes": "2xx"},
    {"http_sticky_sessions": "perhaps", **HTTP},
    {"http_timeout_idle": "301s", **HTTP},
    {"http_timeout_idle": "5s", **HTTP},
    {"http_timeout_idle": "long", **HTTP},
    {"ipv6_disabled": "perhaps"},
    {"name": "taken"},
    {"node_selector": "a in b"},
    {"node_selector": "a=b=c"},
    {"private_ipv4": "::1"},
    {"private_ipv4": "10.0.0.999"},
    {"private_ipv4": "192.0.2.1"},
    {"private_subnet_ip_range": "10.0.0.0/x"},
    {"private_subnet_ip_range": "10.9.0.0/24", "private_ipv4": "10.9.0.1"},
    {"protocol": "udp"},
    {"protocol": ""},
    {"protocol": "https"},
    {"type": "lb99"},
    {"use_private_ip": "perhaps"},
    {"uses_proxyprotocol": "perhaps"},
]


def test_there_are_fifty_of_them() -> None:
    assert len(BAD) >= 50
    assert len({str(one) for one in BAD}) == len(BAD)


@pytest.mark.row("hcloud-balancer-23")
@pytest.mark.parametrize("asked", BAD, ids=str)
async def test_members_follow_the_nodes_with_a_bad_value_and_one_event(
    asked: dict[str, str],
) -> None:
    """After a start, too, while the cloud is asked no more often than the back-off allows."""
    world = HcloudWorld(HCLOUD_LOAD_BALANCERS_TYPE="lb11")
    nodes = [await world.join() for _ in range(3)]
    world.service(ports=PORTS)
    async with world.running():
        await world.pass_time(60)
    assert world.members == set(nodes)
    world.fake.service.cloud.load_balancers[1] = {
        **next(iter(world.fake.service.cloud.load_balancers.values())),
        "id": 1,
        "name": "taken",
        "labels": {},
        "targets": [],
    }
    nodes.append(await world.join())
    world.annotate(**asked)
    world.forget()

    async with world.running():
        await world.pass_time(60)
        assert world.members == set(nodes)
        gone = nodes.pop(0)
        world.remove_node(gone)
        await world.pass_time(90)
        assert world.members == set(nodes)
        nodes.append(await world.join())
        await world.pass_time(90)
        assert world.members == set(nodes)
        assert len(world.warnings()) == 1, world.warnings()
        assert sum(world.http.calls.values()) < 80

        world.annotate()
        await world.pass_time(10)
        assert world.members == set(nodes)
        assert len(world.warnings()) == 1
    assert world.reasons()[-1] == "EnsuredLoadBalancer"
