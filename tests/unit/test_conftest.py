"""No test reaches another machine; what tests share is made once."""

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
def test_other_machines_are_out_of_reach(
    name: str, family: socket.AddressFamily, address: tuple[str, int]
) -> None:
    with (
        socket.socket(family, socket.SOCK_DGRAM) as outgoing,
        pytest.raises(RuntimeError, match="may not connect"),
    ):
        getattr(outgoing, name)(address)


def test_loopback_is_within_reach() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname()).close()


@pytest.mark.xdist_group("of-one")
def test_a_group_of_tests_shares_a_process(request: pytest.FixtureRequest) -> None:
    """Else every process makes its own API server, wheel and run of the broken providers."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("only where several processes run with `--dist loadgroup`")
    assert request.node.nodeid.endswith("@of-one")


def test_a_worker_did_not_collect_the_tests_itself(request: pytest.FixtureRequest) -> None:
    """Six of them would take as long for that as for a quarter of the tests."""
    if not hasattr(request.config, "workerinput"):
        pytest.skip("only where several processes run")
    assert workers.is_forked()
