"""The simulated cloud as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.sim import __main__ as command
from tests.waiting import DEADLINE_S

COMMAND = [sys.executable, "-m", "providers.sim"]


def ask(url: str, body: str | None = None) -> dict[str, object]:
    request = urllib.request.Request(
        url, data=body.encode() if body else None, headers={"Authorization": "Bearer a-tokens-text"}
    )
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        answer: dict[str, object] = json.load(response)
        return answer


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "token").write_text("a-tokens-text\n")
    command = [*COMMAND, "--token-file", str(tmp_path / "token")]
    command += ["--latency", "1ms", "--page-size", "7"]
    command += ["--rate-limit", "100", "--seed", "3", "--state", str(tmp_path / "state.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        yield running
        running.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_cleanly(
    process: subprocess.Popen[str], number: signal.Signals, tmp_path: Path
) -> None:
    assert process.stdout
    ready = json.loads(process.stdout.readline())
    made = ask(f"{ready['url']}/v1/instances", '{"name": "a"}')
    settings = ask(f"{ready['url']}/admin/settings")

    process.send_signal(number)
    code = process.wait(timeout=DEADLINE_S)

    assert ready["token"] == "a-tokens-text"
    assert (settings["latency_s"], settings["page_size"]) == (0.001, 7)
    assert settings["rate_limit"] == 100
    assert code == 0
    saved = json.loads((tmp_path / "state.json").read_text())
    assert [one["id"] for one in saved["instances"]] == [made["id"]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--latency", "fast"], "not a duration"),
        (["--latency=-1s"], "negative"),
        (["--page-size", "501"], "not between 1 and 500"),
        (["--rate-limit=-1"], "negative"),
    ],
)
def test_bad_options_are_explained(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)

    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_an_unreadable_state_file_ends_it_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "state.json"
    path.write_text("{")

    assert command.main(["--state", str(path)]) == 1
    assert str(path) in capsys.readouterr().err
