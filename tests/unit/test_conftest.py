"""No test reaches another host; shared fixtures are created once."""

from __future__ import annotations

import socket

import pytest

from tests import workers

ELSEWHERE = ("192.0.2.1", 80)  # RFC 5737: never routed


@pytest.mark.parametrize("name", ["connect", "connect_ex"])
@pytest.mark.parametrize(
    ("family", "address"),
    [
        (socket.AF_INET, ELSEWHERE),
        (socket.AF_INET, ("example.com", 80)),
        (socket.AF_INET6, ("2001:db8::1", 80)),
    ],
)
def test_connections_to_other_hosts_are_refused(
    name: str, family: socket.AddressFamily, address: tuple[str, int]
) -> None:
    with (
        socket.socket(family, socket.SOCK_DGRAM) as outgoing,
        pytest.raises(RuntimeError, match="may not connect"),
    ):
        getattr(outgoing, name)(address)


def test_connections_to_loopback_are_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname()).close()


@pytest.mark.xdist_group("of-one")
def test_tests_of_an_xdist_group_share_a_process(request: pytest.FixtureRequest) -> None:
    """Otherwise every process creates its own API server, wheel and run of the broken providers."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("only where several processes run with `--dist loadgroup`")
    assert request.node.nodeid.endswith("@of-one")


def test_forked_worker_does_not_collect_the_tests_again(request: pytest.FixtureRequest) -> None:
    """In six workers, collection would take as long as a quarter of the tests."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("only where several processes run")
    assert workers.is_forked()
