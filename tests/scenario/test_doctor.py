"""What `kube-ccm doctor` finds: one planted fault after the other, and the first line about it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import msgspec
import pytest

from ccm.sandbox import ports, realserver
from tests import servers
from tests.scenario.examination import (
    add_node,
    examined,
    finds,
)
from tests.scenario.harness import Stage
from tests.scenario.plugin import install

OTHER_CA = Path(__file__).parent.parent / "unit" / "kube" / "certs" / "authority-one.pem"


async def test_where_all_is_well_it_says_so(stage: Stage) -> None:
    """No trouble, exit status 0; as JSON too."""
    await add_node(stage)

    told = await examined(stage)
    as_json = await examined(stage, "-o", "json")

    assert (told.troubles, told.code) == ([], 0)
    found = json.loads("\n".join(as_json.lines))
    assert found["healthy"] is True
    assert "ok    instances: 1 node looked for, each has its instance" in told.lines
    assert [check["check"] for check in found["checks"]] == [
        line[6:].partition(":")[0] for line in told.lines if line[:4].strip() and line[4:6] == "  "
    ]


async def test_nothing_is_written(stage: Stage) -> None:
    """No request but questions, at the API server and at the cloud."""
    await stage.node("n1")
    wire = await stage.new_wire()
    kubeconfig = stage.folder / "wired.kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=wire.url, token=stage.server.token)

    await examined(stage, f"--kubeconfig={kubeconfig}")

    asked = {one.path.rpartition("/")[2] for one in wire.log if one.method != "GET"}
    assert asked <= {"selfsubjectreviews", "selfsubjectaccessreviews"}
    assert len(wire.log) > 10
    assert {one.operation for one in stage.calls()} <= {"list_instances", "get_instance"}


@servers.only_builtin
@pytest.mark.parametrize(
    ("word", "trouble"),
    [
        ("--kubeconfig=/none", "fail  kubeconfig: /none: no such file"),
        (
            "--cloud-provider=sin",
            "fail  provider: unknown cloud provider 'sin'; did you mean 'sim'? Installed",
        ),
        ("--cloud-provider=", "fail  provider: --cloud-provider is not given; installed: sim"),
        (
            "--cloud-config=/none",
            "fail  cloud-config: --cloud-config=/none cannot be read: No such file or directory",
        ),
        (
            "--allocate-node-cidrs=true",
            "warn  flags: 5 settings given: --allocate-node-cidrs has no effect: no controller",
        ),
        (
            "--cluster-cidr=",
            "fail  controllers: node-route-controller cannot start: --cluster-cidr is empty; ",
        ),
    ],
)
async def test_a_flag_that_cannot_be_right(stage: Stage, word: str, trouble: str) -> None:
    await finds(stage, trouble, word)


@servers.only_builtin
async def test_kubeconfig_broken(stage: Stage, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("clusters: [")

    await finds(
        stage,
        f"fail  kubeconfig: {broken}: cannot be read: while parsing a flow node expected the node ",
        f"--kubeconfig={broken}",
    )


@servers.only_real
async def test_wrong_authority(stage: Stage, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=stage.server.url, token="x", ca_file=OTHER_CA)

    # What follows are the TLS library's own words, which change from version to version.
    await finds(
        stage,
        f"fail  server: {stage.server.url}: its certificate is not trusted: ",
        f"--kubeconfig={kubeconfig}",
    )


@servers.only_builtin
async def test_server_unreachable(stage: Stage, tmp_path: Path) -> None:
    url = f"http://{ports.LOOPBACK}:{ports.pick_port()}"
    kubeconfig = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=url, token="x")

    told = await finds(
        stage,
        f"fail  server: {url}: nothing listens there, or no way leads there",
        f"--kubeconfig={kubeconfig}",
    )

    # The provider and its cloud are looked at all the same.
    assert any(line.startswith("ok    cloud: the cloud answers") for line in told.lines)


async def test_token_rejected(stage: Stage, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(
        kubeconfig, url=stage.server.url, token="expired", ca_file=stage.server.ca_file
    )

    await finds(
        stage,
        "fail  identity: the API server does not accept our credentials",
        f"--kubeconfig={kubeconfig}",
    )


@servers.only_builtin
async def test_cloud_config_broken(stage: Stage) -> None:
    stage.cloud_config.write_text("url: nowhere\ntimeout: soon\n")

    told = await finds(
        stage,
        f"fail  cloud-config: {stage.cloud_config}: url is 'nowhere'; it must look like "
        "http://host:port",
    )

    assert any("token is missing" in line for line in told.lines)
    assert any("timeout is 'soon'" in line for line in told.lines)


@servers.only_builtin
async def test_cloud_credentials_wrong(stage: Stage) -> None:
    stage.configure_cloud(token="not-the-token")

    told = await finds(stage, "fail  cloud: the cloud does not accept the credentials: ")

    assert "not-the-token" not in "\n".join(told.lines)


@servers.only_builtin
async def test_cloud_unreachable(stage: Stage) -> None:
    stage.configure_cloud(url=f"http://{ports.LOOPBACK}:{ports.pick_port()}")

    await finds(stage, "fail  cloud: the cloud does not answer: ")


@servers.only_builtin
async def test_cloud_silent(stage: Stage) -> None:
    """A cloud that accepts and says nothing costs one deadline, not patience."""
    stage.configure_cloud(timeout="30s")
    stage.cloud.settings = msgspec.structs.replace(stage.cloud.settings, latency_s=30.0)

    await finds(stage, "fail  cloud: not finished within 1 s", "--timeout=1s")


HANGING = """
import time
from ccm import cloud

@cloud.provider(sdk="1.0")
async def open_cloud(context):
    time.sleep(600)
    yield cloud.Cloud(name="hanging")
"""


@servers.only_builtin
async def test_a_provider_that_blocks_everything(stage: Stage) -> None:
    """Not even then the command hangs; what was found before is printed already."""
    words = ["--cloud-provider=hanging", f"--kubeconfig={stage.server.kubeconfig_path}"]

    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ccm.cli", "doctor", "--timeout=2s", *words),
        env={**os.environ, **install(stage.folder, "hanging", HANGING)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaint = await asyncio.wait_for(child.communicate(), 50)

    assert child.returncode == 1
    assert b"\nok    provider: hanging (ccm_hanging:open_cloud, ccm-hanging 1.0)\n" in said
    assert complaint == b"kube-ccm doctor: cloud-config: hangs and cannot be cancelled, given up\n"
