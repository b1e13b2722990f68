"""The daemon's command line, and processes that do not become ready."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ccm.app import options
from ccm.app.options import names
from ccm.sandbox import cluster, podranges, ports, process


def test_the_daemon_understands_its_command_line(tmp_path: Path) -> None:
    flags = cluster.daemon_flags(
        kubeconfig=tmp_path / "kubeconfig",
        provider="sim",
        config=tmp_path / "cloud.yaml",
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
    assert (read.configure_cloud_routes, read.cluster_cidr) == (True, podranges.WHOLE)
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
