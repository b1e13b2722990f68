"""`kube-ccm sandbox` as a process: its last line, and its leftovers."""

from __future__ import annotations

import contextlib
import fcntl
import html
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests import forkserver, servers
from tests.kubectl.tool import Kubectl
from tests.sandbox.command import (
    DEADLINE_S,
    hints,
    leftovers,
    processes_of,
    started,
    tokens_in,
    typed,
)

LAST_LINE = re.compile(
    r"done: (\d+) nodes initialised, (\d+) routes, (\d+) Services served, "
    r"(\d+) writes, (\d+) cloud calls, (\d+) warnings in [\d.]+ s"
)

only_builtin = pytest.mark.parametrize("environment", [servers.BUILTIN], indirect=True)


def test_once_initialises_every_node_and_exits(
    home: Path, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    picture = tmp_path / "last.svg"
    words = ["--once", "--nodes", "20", "--services", "3", "--picture", str(picture)]
    with started(home, environment, *words) as sandbox:
        sandbox.read_to_the_end()

    assert sandbox.process.returncode == 0, sandbox.lines
    told = LAST_LINE.fullmatch(sandbox.lines[-1])
    assert told is not None, sandbox.lines
    nodes, routes, services, writes, cloud_calls, warnings = map(int, told.groups())
    assert (nodes, routes, services, warnings) == (20, 20, 3, 0), sandbox.lines
    # Two for each node, one or two about its route; finalizer and addresses of each Service.
    assert 66 <= writes <= 90
    assert routes + services < cloud_calls <= 80
    assert "3/3\N{NO-BREAK SPACE}Services" in html.unescape(picture.read_text())
    assert leftovers(home) == []


@pytest.mark.envtest
@only_builtin
def test_printed_hints_are_working_commands(home: Path, environment: Mapping[str, str]) -> None:
    """A healthy demo has no warning; the counters follow its machines."""
    path = f"{servers.require_assets()}{os.pathsep}{os.defpath}"
    environment = {**environment, "PATH": path}
    with started(home, environment, "--nodes", "2", "--services", "1") as sandbox:
        lines = hints(sandbox)
        exports, acts, doctor = lines[:2], lines[2:-2], lines[-2:]
        assert [line.split()[0] for line in exports] == ["export", "export"]

        examined = typed([*exports, *doctor], home, environment)
        # Explained may be the node whose instance was deleted a line before.
        acts = [f"{line} || [ $? = 3 ]" if "explain" in line else line for line in acts]
        said = typed([*exports, *acts], home, environment)

        sandbox.read_until_seen("node-0001: deleted")
        sandbox.read_until_seen("2/2 nodes initialised, 2/2 routes, 2/2 Services, ")

        sandbox.end(signal.SIGINT)

    assert max(map(len, lines)) <= 80 + len(str(home))
    # The daemon is no Pod, so doctor cannot ask it.
    others = [line for line in examined.splitlines()[:-1] if line[:6] not in ("ok    ", "      ")]
    assert [line.partition(":")[0] for line in others] == ["skip  journal"]
    assert "ok    instances: 2 nodes checked, each has an instance" in examined
    assert "ok    pod-cidrs: 2 nodes, all Pod ranges within" in examined
    assert re.search(r"^node-0001 +Ready", said, re.MULTILINE), said
    assert "node-0001: i-0001 is powered off" in said
    assert leftovers(home) == []


@only_builtin
def test_another_daemon_can_use_the_kubeconfig_of_the_sandbox(
    home: Path, environment: Mapping[str, str], other_cloud: Path
) -> None:
    """With a provider of the user, and its routes."""
    arguments = ("--cloud-provider", "sim", "--cloud-config", str(other_cloud), "--routes")
    with started(home, environment, *arguments, "--node-names", "vm-1,vm-2") as sandbox:
        kubeconfig = sandbox.read_until("export KUBECONFIG=").partition("=")[2]
        sandbox.read_until("converged: 2 nodes initialised, 2 routes in ")
        command = [sys.executable, "-m", "ccm", f"--kubeconfig={kubeconfig}"]
        command += ["--cloud-provider=sim", f"--cloud-config={other_cloud}", "--secure-port=0"]
        command += ["--leader-elect-resource-name=mine", "--cluster-cidr=100.64.0.0/10"]
        with forkserver.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as daemon:
            assert daemon.stderr is not None
            assert any("became leader" in line for line in daemon.stderr)
            daemon.terminate()
            said = daemon.stderr.read()
            assert daemon.wait(timeout=DEADLINE_S) == 0, said
        sandbox.end(signal.SIGINT)


def test_ctrl_c_stops_the_sandbox_without_leftovers(
    home: Path, environment: Mapping[str, str]
) -> None:
    began = time.monotonic()
    with started(home, environment, "--nodes", "3") as sandbox:
        sandbox.read_until("converged: 3 nodes initialised, 3 routes, 2 Services served in ")
        start_s = time.monotonic() - began
        commands = processes_of(home)
        assert len(commands) >= 3
        assert [each for each in commands if sys.executable in each and "\0-I\0" not in each] == []
        tokens = tokens_in(home)
        assert len(tokens) >= 2
        assert [each for each in commands for token in tokens if token in each] == []

        took_s = sandbox.end(signal.SIGINT)

    assert sandbox.process.returncode == 0
    assert sandbox.lines[-1].startswith("done: 3 nodes initialised, ")
    assert took_s < max(10, 2 * start_s)
    assert leftovers(home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@only_builtin
def test_a_signal_during_the_start_stops_the_sandbox(
    home: Path, environment: Mapping[str, str], number: signal.Signals
) -> None:
    with started(home, environment, "--once") as sandbox:
        sandbox.read_until("starting")

        sandbox.end(number)

    assert sandbox.process.returncode == 130
    assert leftovers(home) == []


@pytest.mark.envtest
@pytest.mark.parametrize("environment", [servers.REAL], indirect=True)
def test_a_service_gets_a_load_balancer_until_its_deletion(
    home: Path, environment: Mapping[str, str]
) -> None:
    program = servers.require_assets() / "kubectl"
    with started(home, environment, "--nodes", "2", "--services", "0") as sandbox:
        config = sandbox.read_until("export KUBECONFIG=").partition("=")[2]
        kubectl = Kubectl(program, Path(config), home / "of-kubectl")
        sandbox.read_until("converged: 2 nodes initialised, 2 routes in ")

        kubectl("create", "service", "loadbalancer", "web", "--tcp=80")
        sandbox.read_until_seen("Service web: reachable at ")
        shown = kubectl("get", "service", "web")
        kubectl("delete", "service", "web")
        sandbox.read_until_seen("Service web: deleted")

        sandbox.end(signal.SIGINT)

    assert re.search(r"^web +LoadBalancer +10\.96\.\d+\.\d+ +198\.18\.", shown, re.MULTILINE), shown


@only_builtin
def test_a_cluster_that_does_not_converge_exits_with_1(
    home: Path, environment: Mapping[str, str]
) -> None:
    arguments = ("--once", "--nodes", "2", "--latency", "1m", "--timeout", "2s")
    with started(home, environment, *arguments) as sandbox:
        sandbox.read_to_the_end()

    assert sandbox.process.returncode == 1
    assert sandbox.lines[-1].startswith("not converged: 0 of 2 nodes initialised, ")
    assert any(line.startswith("not initialised: node node-0001: ") for line in sandbox.lines)
    assert leftovers(home) == []


@only_builtin
def test_a_failed_start_of_the_daemon_is_reported_with_its_cause(
    home: Path, environment: Mapping[str, str]
) -> None:
    config = home.parent / "broken.yaml"
    config.write_text("url: nonsense\n")
    arguments = ("--cloud-provider", "sim", "--cloud-config", str(config))
    with started(home, environment, *arguments) as sandbox:
        sandbox.read_to_the_end()

    assert sandbox.process.returncode == 1
    said = "\n".join(sandbox.lines)
    assert "the daemon exited with status 1" in said
    assert "url is 'nonsense'" in said
    assert leftovers(home) == []


@pytest.fixture
def other_cloud(tmp_path: Path) -> Iterator[Path]:
    """Start another cloud with two instances; return the configuration of its provider."""
    log = tmp_path / "cloud.log"
    token = tmp_path / "token"
    token.write_text("t\n")
    command = [sys.executable, "-m", "providers.sim", "--token-file", str(token)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        url = json.loads(child.stdout.readline())["url"]
        body = json.dumps({"instances": [{"name": "vm-1"}, {"name": "vm-2"}]}).encode()
        headers = {"Authorization": "Bearer t"}
        request = urllib.request.Request(f"{url}/admin/instances", body, headers)
        with urllib.request.urlopen(request, timeout=DEADLINE_S):
            pass
        log.write_text(f"url: {url}\ntoken: t\n")
        yield log
    finally:
        child.terminate()
        child.communicate(timeout=DEADLINE_S)


@only_builtin
def test_a_provider_of_the_user_initialises_the_named_nodes(
    home: Path, environment: Mapping[str, str], other_cloud: Path
) -> None:
    arguments = ("--once", "--cloud-provider", "sim", "--cloud-config", str(other_cloud))
    with started(home, environment, *arguments, "--node-names", "vm-1,vm-2") as sandbox:
        sandbox.read_to_the_end()

    assert sandbox.process.returncode == 0, sandbox.lines
    assert sandbox.lines[-1].startswith("done: 2 nodes initialised, 4 writes, ")
    assert not any("simulated cloud" in line for line in sandbox.lines)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sequence[str], Path]:
    """Return the output of a sandbox that keeps its folder, and the folder."""
    home = tmp_path_factory.mktemp("kept")
    environment = {**os.environ, "TMPDIR": str(home)}
    environment.pop("KUBEBUILDER_ASSETS", None)
    words = ("sandbox", "--once", "--nodes", "1", "--keep")
    told = subprocess.run(
        [sys.executable, "-m", "ccm.cli", *words],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    (folder,) = home.iterdir()
    return told.stdout.splitlines(), folder


@pytest.mark.xdist_group("kept")
def test_the_working_folder_is_kept_on_request(kept: tuple[Sequence[str], Path]) -> None:
    lines, folder = kept

    assert {"daemon.log", "sandbox.log"} <= {path.name for path in folder.iterdir()}
    assert str(folder) in lines[0]
    assert lines[-1].startswith("done: ")


@pytest.mark.xdist_group("kept")
def test_the_daemon_runs_on_uvloop_where_it_is_installed(kept: tuple[Sequence[str], Path]) -> None:
    (line,) = re.findall(r'.*"msg":"starting".*', (kept[1] / "daemon.log").read_text())

    assert json.loads(line)["event_loop"] == "uvloop"


@only_builtin
def test_a_table_is_drawn_on_a_terminal(home: Path, environment: Mapping[str, str]) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 160, 0, 0))
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "ccm.cli", "sandbox", "--once", "--nodes", "3"],
        cwd=home,
        env={**environment, "TERM": "xterm"},
        stdout=theirs,
    )
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # Linux raises this when the other side is closed
        while chunk := os.read(ours, 65536):
            said += chunk
    os.close(ours)

    assert child.wait(timeout=DEADLINE_S) == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode()).splitlines()
    assert any(line.split()[:2] == ["NAME", "READY"] for line in lines)
    assert any(line.startswith("node-0003") and "sim://i-0003" in line for line in lines)
    assert any(line.startswith("web-2") and "80/TCP,443/TCP" in line for line in lines)
    assert lines[-1].startswith("done: 3 nodes initialised")
    assert b"\x1b[?25h" in said
