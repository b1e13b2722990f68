"""A picked port is free and stays out of the way of outgoing connections."""

from __future__ import annotations

import socket

import pytest

from ccm.sandbox import ports


def test_a_picked_port_can_be_listened_on() -> None:
    with socket.create_server((ports.LOOPBACK, ports.pick_port())) as listener:
        assert listener.getsockname()[1] < 32768


def test_a_port_in_use_is_not_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ports.LOOPBACK, ports.pick_port())) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(ports, "_FIRST", taken)
        monkeypatch.setattr(ports, "_LAST", taken)
        with pytest.raises(OSError, match="no free loopback port"):
            ports.pick_port()


def test_a_port_that_is_picked_and_not_used_yet_is_not_picked_again() -> None:
    picked = [ports.pick_port() for _ in range(500)]

    assert len(set(picked)) == len(picked)
