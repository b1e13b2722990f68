"""The daemon's command line, and processes that do not become ready."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ccm.app import options
from ccm.app.options import checks, names
from ccm.sandbox import cluster, kubelet, ports, process


def test_the_daemon_understands_its_command_line(tmp_path: Path) -> None:
    flags = cluster.daemon_flags(
        kubeconfig=tmp_path / "kubeconfig",
        provider="sim",
        config=tmp_path / "cloud.yaml",
        routes=True,
        port=18001,
    )

    read = options.parse(flags)
    checks.check(read)

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
            kubeconfig=Path("k"), provider="sim", config=None, routes=True, port=7,
            machines=machines,
        )  # fmt: skip
        enabled = {one.name for one in names.enabled(options.parse(flags).controllers)}
        assert (wanted <= enabled) is machines
        assert "cloud-node-controller" in enabled


def test_no_flag_of_the_sandbox_is_without_effect() -> None:
    flags = cluster.daemon_flags(
        kubeconfig=Path("k"), provider="acme", config=None, routes=False, port=7
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
