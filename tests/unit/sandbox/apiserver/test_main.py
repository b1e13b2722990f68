"""The server as a process; `tests/envtest/test_api_servers.py` lets it come again."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys

import pytest
import yaml

from tests.waiting import DEADLINE_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("token", ["", "secret"])
def test_it_says_where_it_is_and_ends_cleanly(
    tmp_path: pathlib.Path, number: signal.Signals, token: str
) -> None:
    command = [sys.executable, "-m", "ccm.sandbox.apiserver", "--data-dir", str(tmp_path / "new")]
    if token:
        (tmp_path / "token").write_text(f"{token}\n")
        command += ["--token-file", str(tmp_path / "token")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(timeout=DEADLINE_S) == 0

    config = yaml.safe_load(pathlib.Path(ready["kubeconfig"]).read_text())
    assert ready["token"] == (token or None)
    assert config["current-context"] == "ccm-sandbox"
    assert config["clusters"][0]["cluster"] == {"server": ready["url"]}
    assert config["users"][0]["user"] == ({"token": token} if token else {})
