"""The server as a process of its own: ready line, signals, restart."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

MODULE = "ccm.sandbox.apiserver"


class Running:
    """A server process and what its ready line said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.ready: dict[str, Any] = json.loads(process.stdout.readline())

    def request(self, path: str, body: Any = None, token: str = "") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.ready["url"] + path, data=data)
        request.add_header("Content-Type", "application/json")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=5) as response:
            return json.loads(response.read())

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=10)


@contextlib.contextmanager
def run(data_dir: pathlib.Path, *options: str) -> Iterator[Running]:
    command = [sys.executable, "-m", MODULE, "--data-dir", str(data_dir), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_cleanly(
    tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    with run(tmp_path / "new") as server:
        config = yaml.safe_load(pathlib.Path(server.ready["kubeconfig"]).read_text())

        assert server.ready["token"] is None
        assert config["current-context"] == "ccm-sandbox"
        assert config["clusters"] == [
            {"name": "ccm-sandbox", "cluster": {"server": server.ready["url"]}}
        ]
        assert server.end(number) == 0


def test_a_token_is_asked_for_and_stands_in_the_kubeconfig(tmp_path: pathlib.Path) -> None:
    with run(tmp_path, "--token", "secret") as server:
        config = yaml.safe_load(pathlib.Path(server.ready["kubeconfig"]).read_text())

        assert server.ready["token"] == "secret"
        assert config["users"][0]["user"] == {"token": "secret"}
        assert server.request("/api/v1/nodes", token="secret")["items"] == []
        with pytest.raises(urllib.error.HTTPError) as caught:
            server.request("/api/v1/nodes", token="wrong")
        assert caught.value.code == 401
        caught.value.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_successor_on_the_same_port_has_the_same_objects(
    tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    with run(tmp_path) as first:
        made = first.request("/api/v1/nodes", {"metadata": {"name": "n1"}})
        first.end(number)
    port = first.ready["url"].rpartition(":")[2]

    with run(tmp_path, "--port", port) as second:
        found = second.request("/api/v1/nodes/n1")
        later = second.request("/api/v1/nodes", {"metadata": {"name": "n2"}})

    assert second.ready["url"] == first.ready["url"]
    assert found == made
    versions = [int(node["metadata"]["resourceVersion"]) for node in (made, later)]
    assert versions[1] == versions[0] + 1
