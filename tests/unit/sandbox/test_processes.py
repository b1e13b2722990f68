"""The processes of a sandbox: how they start, where they listen, what they log, how they end."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ccm.app import options
from ccm.app.options import names
from ccm.cloud import registry
from ccm.sandbox import Provider, cluster, kubelet, ports, process, realserver
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
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_both_outputs_go_to_the_log_and_are_appended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for word in ("first", "second"):
        await ended(python(f"import sys; print('{word}'); sys.exit('{word} error')", log))
    assert log.read_text().split("\n") == ["first", "first error", "second", "second error", ""]


async def test_the_log_tail_is_short(tmp_path: Path) -> None:
    child = await ended(python("print('x' * 100_000 + 'end')", tmp_path / "log"))
    assert len(child.log_tail()) == 4000
    assert child.log_tail().endswith("xend\n")


async def test_stop_asks_first(tmp_path: Path) -> None:
    child = await up("import time; print('up', flush=True); time.sleep(60)", tmp_path / "log")
    assert child.exit_code is None
    assert await child.stop(grace_s=DEADLINE_S) == child.exit_code == -signal.SIGTERM


async def test_stop_kills_who_does_not_listen(tmp_path: Path) -> None:
    child = await up(STUBBORN + "time.sleep(60)", tmp_path / "log")
    assert await child.stop(grace_s=0.1) == -signal.SIGKILL


async def test_the_exit_code_of_its_own_end_is_kept(tmp_path: Path) -> None:
    child = await ended(python("raise SystemExit(3)", tmp_path / "log"))
    assert [await child.stop(grace_s=1), await child.kill()] == [3, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
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


def test_a_program_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        process.Child([str(tmp_path / "nothing")], log=tmp_path / "log")


# --- A picked port is free and stays out of the way of outgoing connections --------------------


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


# --- The files written for and about the real API server ---------------------------------------


def test_a_kubeconfig_names_server_user_and_certificates(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    ca_file = tmp_path / "ca.crt"
    realserver.write_kubeconfig(path, url="https://127.0.0.1:1", token="t", ca_file=ca_file)
    document = json.loads(path.read_text())
    assert document["clusters"][0]["cluster"] == {
        "server": "https://127.0.0.1:1",
        "certificate-authority": str(ca_file),
    }
    assert document["users"][0]["user"] == {"token": "t"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_missing_programs_are_listed(tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()
    assert realserver.missing_binaries(tmp_path) == ["kube-apiserver"]


def test_a_signing_key_is_a_whole_der_sequence_and_new_each_time() -> None:
    first, second = (realserver._new_signing_key() for _ in range(2))
    assert first != second
    lines = first.splitlines()
    assert (lines[0], lines[-1]) == (
        "-----BEGIN EC PRIVATE KEY-----",
        "-----END EC PRIVATE KEY-----",
    )
    body = base64.b64decode("".join(lines[1:-1]))
    assert body[0] == 0x30
    assert body[1] == len(body) - 2


# --- The daemon's command line, and processes that do not become ready -------------------------


def test_the_daemon_understands_its_command_line(tmp_path: Path) -> None:
    flags = cluster.daemon_flags(
        kubeconfig=tmp_path / "kubeconfig",
        provider=Provider(name="sim", config=tmp_path / "cloud.yaml"),
        routes=True,
        port=18001,
    )

    read = options.parse(flags)
    options.check(read)

    assert (read.kubeconfig, read.cloud_config) == (
        str(tmp_path / "kubeconfig"),
        str(tmp_path / "cloud.yaml"),
    )
    assert (read.cloud_provider, read.leader_elect) == ("sim", True)
    assert (read.configure_cloud_routes, read.cluster_cidr) == (True, kubelet.POD_RANGE)
    assert (str(read.bind_address), read.secure_port) == (ports.LOOPBACK, 18001)
    assert read.api_rate == (cluster.API_QPS, cluster.API_BURST)


def test_controllers_of_machines_work_where_there_are_machines() -> None:
    wanted = {"machine-controller", "machineclass-controller", "machine-safety-controller"}
    wanted |= {"machine-set-controller", "machine-deployment-controller"}
    wanted |= {"machine-overshoot-controller"}
    for machines in (True, False):
        flags = cluster.daemon_flags(
            kubeconfig=Path("k"), provider=Provider(name="sim"), routes=True, port=7,
            has_machines=machines,
        )  # fmt: skip
        enabled = {one.name for one in names.enabled(options.parse(flags).controllers)}
        assert (wanted <= enabled) is machines
        assert "cloud-node-controller" in enabled


def test_no_flag_of_the_sandbox_is_without_effect() -> None:
    flags = cluster.daemon_flags(
        kubeconfig=Path("k"), provider=Provider(name="acme"), routes=False, port=7
    )

    read = options.parse(flags)

    assert not [line for line in read.notices() if line.startswith("--")]
    assert (read.cloud_config, read.configure_cloud_routes) == ("", False)


def test_the_last_words_of_a_process_are_quoted(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("a\nthe reason\n")

    assert cluster.last_words("it ended", log) == "it ended; the end of x.log:\na\nthe reason"
    assert "(nothing)" in cluster.last_words("it ended", tmp_path / "absent.log")


async def test_a_process_that_ends_before_it_is_ready_leaves_its_last_words(
    tmp_path: Path,
) -> None:
    child = process.Child(
        [sys.executable, "-c", "raise SystemExit('no way')"], log=tmp_path / "log"
    )

    with pytest.raises(cluster.StartError, match="no way"):
        await cluster.until_ready(child)


async def test_readiness_is_the_first_line_of_json(tmp_path: Path) -> None:
    script = "import time; print('warming up'); print('{\"url\": 1}', flush=True); time.sleep(60)"
    child = process.Child([sys.executable, "-c", script], log=tmp_path / "log")
    try:
        assert await cluster.until_ready(child) == {"url": 1}
    finally:
        await child.kill()


# --- the daemon's log ------------------------------------------------------------------------


def test_each_whole_line_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = cluster.DaemonLog(path)
    path.write_text('{"msg":"one","level":"info"}\n{"msg":"tw')
    assert [entry.msg for entry in log.news()] == ["one"]

    with path.open("a") as more:
        more.write('o","level":"warning","extra":[1]}\n')

    (entry,) = log.news()
    assert (entry.msg, entry.is_warning) == ("two", True)
    assert log.news() == []


def test_what_is_no_log_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('Traceback (most recent call last):\n[]\n\xff\n{"msg":"x","level":"error"}\n')

    assert [entry.msg for entry in cluster.DaemonLog(path).news()] == ["x"]


def test_the_figures_stand_in_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = cluster.DaemonLog(path)
    path.write_text('{"msg":"stopping"}\n')
    assert [(entry.msg, log.last) for entry in log.news()] == [("stopping", None)]

    figures = '"node_writes":10,"service_writes":3,"cloud_calls":2'
    path.write_text(f'{{"msg":"stopping"}}\n{{"msg":"stopped",{figures}}}\n')
    log.news()

    assert log.last is not None
    assert (log.last.writes, log.last.cloud_calls) == (13, 2)


def test_an_entry_reads_as_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"msg":"it failed","node":"a","err":"no answer","level":"error"}\n')

    assert [str(entry) for entry in cluster.DaemonLog(path).news()] == ["it failed a no answer"]


# --- A provider's fake in the place of its cloud -----------------------------------------------


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("sim", ""),
        ("hcloud", "providers.hcloud.testing"),
        ("stackit", "providers.stackit.testing"),
    ],
)
def test_who_has_one(name: str, module: str) -> None:
    assert cluster.fake_of(registry.load(name)) == module


def test_an_opener_from_nowhere_has_none() -> None:
    async def opener(_: object) -> None:
        """Of a module that is no package."""

    assert cluster.fake_of(opener) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "real", "others"),
    [
        ("hcloud", ["HCLOUD_TOKEN", "ROBOT_ENABLED", "ROBOT_USER_FILE"], ["HOME_OF_HCLOUD"]),
        ("stackit", ["STACKIT_REGION"], ["ROBOT_ENABLED"]),
        ("my-cloud", ["MY_CLOUD_TOKEN"], ["MY_CLOUDY_DAY", "HCLOUD_TOKEN"]),
    ],
)
def test_nothing_of_a_real_account_reaches_the_daemon(
    monkeypatch: pytest.MonkeyPatch, name: str, real: list[str], others: list[str]
) -> None:
    """Neither by its name nor by what the provider declares; all else stays."""
    for key in (*real, *others):
        monkeypatch.setenv(key, "real")

    config = registry.declared(registry.load(name)).config if name in registry.available() else None

    found = cluster.clean_environment(name, config)

    assert [key for key in (*real, *others) if key in found] == others
