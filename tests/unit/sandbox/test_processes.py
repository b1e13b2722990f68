"""The processes of a sandbox: start, ports, logs and end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ccm.app import options
from ccm.app.options import controllers
from ccm.cloud import registry
from ccm.sandbox import SandboxProvider, cluster, machineapis, process, realserver
from tests.waiting import DEADLINE_S, eventually, eventually_blocking

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "


def python(code: str, log: Path) -> process.Child:
    return process.Child([sys.executable, "-c", code], log=log)


async def ended(child: process.Child) -> process.Child:
    await eventually(lambda: child.exit_code is not None)
    return child


async def up(code: str, log: Path) -> process.Child:
    child = python(code, log)
    await eventually(lambda: "up" in log.read_text())
    return child


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_log_tail_is_limited(tmp_path: Path) -> None:
    child = await ended(python("print('x' * 100_000 + 'end')", tmp_path / "log"))
    assert len(child.log_tail()) == 4000
    assert child.log_tail().endswith("xend\n")


async def test_stop_sends_sigterm_first(tmp_path: Path) -> None:
    child = await up("import time; print('up', flush=True); time.sleep(60)", tmp_path / "log")
    assert child.exit_code is None
    assert await child.stop(grace_s=DEADLINE_S) == child.exit_code == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_child_ends_with_a_killed_parent(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import sys, time; from pathlib import Path; from ccm.sandbox import process\n"
        f"child = process.Child([sys.executable, '-c', {STUBBORN + 'time.sleep(60)'!r}], "
        f"log=Path({str(log)!r}))\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=root) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        os.kill(parent.pid, signal.SIGKILL)
    eventually_blocking(lambda: not is_alive(child), lambda: f"process {child} still runs")


# --- A picked port is free and stays out of the way of outgoing connections --------------------


def test_used_port_is_not_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((process.LOOPBACK, process.pick_port())) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(process, "_PORTS", range(taken, taken + 1))
        with pytest.raises(OSError, match="no free loopback port"):
            process.pick_port()


# --- The files written for and about the real API server ---------------------------------------


def test_missing_binaries_are_listed(tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()
    assert realserver.missing_binaries(tmp_path) == ["kube-apiserver"]


# --- The daemon's command line, and processes that do not become ready -------------------------


def test_machine_controllers_are_enabled_only_with_machines() -> None:
    apis = {name: api.controllers for name, api in machineapis.APIS.items()}
    of_api = {
        name: {one.name for one in api.manifests.values()} for name, api in machineapis.APIS.items()
    }
    for selected, value in {**apis, "": ""}.items():
        flags = cluster.daemon_flags(
            kubeconfig=Path("k"), provider=SandboxProvider(name="sim"), routes=True, port=7,
            machine_controllers=value,
        )  # fmt: skip
        enabled = {one.name for one in controllers.enabled(options.parse(flags).controllers)}
        assert {name for name, own in of_api.items() if own & enabled} == {selected} - {""}
        assert of_api.get(selected, set()) <= enabled
        assert "cloud-node-controller" in enabled
    assert "machine-overshoot-controller" in of_api["gardener"]


async def test_process_that_ends_before_it_is_ready_shows_its_last_output(tmp_path: Path) -> None:
    child = process.Child(
        [sys.executable, "-c", "raise SystemExit('no way')"], log=tmp_path / "log"
    )

    with pytest.raises(cluster.StartError, match="no way"):
        await cluster.until_ready(child)


# --- the daemon's log ------------------------------------------------------------------------


def test_complete_log_lines_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = cluster.DaemonLog(path)
    path.write_text('{"msg":"one","level":"info"}\n{"msg":"tw')
    assert [entry.msg for entry in log.read_entries()] == ["one"]

    with path.open("a") as more:
        more.write('o","level":"warning","extra":[1]}\n')

    (entry,) = log.read_entries()
    assert (entry.msg, entry.is_warning) == ("two", True)
    assert log.read_entries() == []


def test_figures_are_read_from_the_last_log_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = cluster.DaemonLog(path)
    path.write_text('{"msg":"stopping"}\n')
    assert [(entry.msg, log.last) for entry in log.read_entries()] == [("stopping", None)]

    figures = '"node_writes":10,"service_writes":3,"cloud_calls":2'
    path.write_text(f'{{"msg":"stopping"}}\n{{"msg":"stopped",{figures}}}\n')
    log.read_entries()

    assert log.last is not None
    assert (log.last.writes, log.last.cloud_calls) == (13, 2)


def test_log_entry_is_shown_as_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"msg":"it failed","node":"a","err":"no answer","level":"error"}\n')

    assert [str(entry) for entry in cluster.DaemonLog(path).read_entries()] == [
        "it failed a no answer"
    ]


# --- A provider's fake in the place of its cloud -----------------------------------------------


@pytest.mark.parametrize(
    ("name", "variables", "real", "others"),
    [
        ("hcloud", [], ["HCLOUD_TOKEN", "ROBOT_ENABLED", "ROBOT_USER_FILE"], ["HOME_OF_HCLOUD"]),
        ("stackit", [], ["STACKIT_REGION"], ["ROBOT_ENABLED", "OS_CLOUD"]),
        ("openstack", ["OS_CLOUD"], ["OS_AUTH_URL", "OS_PASSWORD"], ["OSTYPE", "HCLOUD_TOKEN"]),
        ("my-cloud", [], ["MY_CLOUD_TOKEN"], ["MY_CLOUDY_DAY", "HCLOUD_TOKEN"]),
    ],
)
def test_variables_of_a_real_account_are_removed_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    variables: list[str],
    real: list[str],
    others: list[str],
) -> None:
    """Declared ones, and those with the prefix of the provider or fake; all others stay."""
    for key in (*real, *others):
        monkeypatch.setenv(key, "real")

    config = (
        registry.declaration_of(registry.load_provider(name)).config
        if name in registry.installed_providers()
        else None
    )

    found = cluster.clean_environment(name, config, variables)

    assert [key for key in (*real, *others) if key in found] == others
