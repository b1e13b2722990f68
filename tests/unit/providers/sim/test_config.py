"""The cloud config of the simulated cloud."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from ccm import cloud
from providers.sim import config


def read(text: str) -> config.Config:
    return cloud.Context(config=text.encode()).settings(config.Config)


def test_two_fields_are_enough_and_timeouts_are_durations() -> None:
    found = read("url: http://localhost:1/\ntoken: a-tokens-text")
    assert found == config.Config(url="http://localhost:1", token="a-tokens-text")
    assert "a-tokens-text" not in repr(found)

    found = read("url: http://x\ntoken: t\ntimeout: 1m\nconnect_timeout: 500ms")
    given = (found.timeout, found.connect_timeout)
    assert given == (timedelta(minutes=1), timedelta(seconds=0.5))


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(cloud.ConfigError) as caught:
        read("url: ftp://x\ntimeout: soon\nconnect_timeout: 0s\ncolour: red")

    for name in ("url", "token", "timeout", "connect_timeout", "colour"):
        assert any(fault.startswith(f"{name} is") for fault in caught.value.faults), name
    assert len(caught.value.faults) == 5


@pytest.mark.parametrize("url", ["localhost:8080", "http://", "http://x:port", "https://[::1"])
def test_an_odd_url_is_refused(url: str) -> None:
    with pytest.raises(cloud.ConfigError, match="url is"):
        read(f"url: '{url}'\ntoken: t")


def test_the_token_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("t\n")
    context = cloud.Context(config=f"url: http://x\ntoken_file: {file}".encode())

    assert context.settings(config.Config).token == "t"
    assert set(context.followed) == {file}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("token: t\ntoken_file: f", "token is given beside token_file"),
        ("timeout: 1s", "token is missing, and so is token_file"),
        ("token_file: /does/not/exist", "token_file: /does/not/exist cannot be read"),
    ],
)
def test_the_token_is_given_once_and_readable(text: str, words: str) -> None:
    with pytest.raises(cloud.ConfigError, match=words):
        read(f"url: http://x\n{text}")
