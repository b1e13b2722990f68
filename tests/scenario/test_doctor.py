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
from tests.scenario.harness import Environment
from tests.scenario.plugin import install

OTHER_CA = Path(__file__).parent.parent / "unit" / "kube" / "certs" / "authority-one.pem"


async def test_where_all_is_well_it_says_so(env: Environment) -> None:
    """No trouble, exit status 0; as JSON too."""
    await add_node(env)

    told = await examined(env)
    as_json = await examined(env, "-o", "json")

    assert (told.troubles, told.code) == ([], 0)
    found = json.loads("\n".join(as_json.lines))
    assert found["healthy"] is True
    assert "ok    instances: 1 node looked for, each has its instance" in told.lines
    assert [check["check"] for check in found["checks"]] == [
        line[6:].partition(":")[0] for line in told.lines if line[:4].strip() and line[4:6] == "  "
    ]


async def test_nothing_is_written(env: Environment) -> None:
    """No request but questions, at the API server and at the cloud."""
    await env.node("n1")
    proxy = await env.new_proxy()
    kubeconfig = env.folder / "proxied.kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=proxy.url, token=env.server.token)

    await examined(env, f"--kubeconfig={kubeconfig}")

    asked = {one.path.rpartition("/")[2] for one in proxy.log if one.method != "GET"}
    assert asked <= {"selfsubjectreviews", "selfsubjectaccessreviews"}
    assert len(proxy.log) > 10
    asked = {one.operation for one in env.calls()}
    assert asked <= {"list_instances", "get_instance", "list_balancers", "list_routes"}


@servers.only_builtin
@pytest.mark.parametrize(
    ("word", "trouble"),
    [
        ("--kubeconfig=/none", "fail  kubeconfig: /none: no such file"),
        (
            "--cloud-provider=sin",
            "fail  provider: unknown cloud provider 'sin'; did you mean 'sim'? Installed",
        ),
        (
            "--cloud-provider=",
            "fail  provider: --cloud-provider is not given; installed: hcloud, sim, stackit",
        ),
        (
            "--cloud-config=/none",
            "fail  cloud-config: --cloud-config=/none cannot be read: No such file or directory",
        ),
        (
            "--allocate-node-cidrs=true",
            "warn  flags: 4 settings given: accepted without effect: --allocate-node-cidrs",
        ),
        (
            "--webhooks=*",
            "warn  flags: 5 settings given: --webhooks=* has no effect: it needs --feature-gates=",
        ),
        (
            "--cluster-cidr=",
            "fail  controllers: node-route-controller cannot start: --cluster-cidr is not given; ",
        ),
    ],
)
async def test_a_flag_that_cannot_be_right(env: Environment, word: str, trouble: str) -> None:
    await finds(env, trouble, word)


@servers.only_builtin
async def test_kubeconfig_broken(env: Environment, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("clusters: [")

    told = await finds(
        env,
        f"fail  kubeconfig: {broken}: is not valid YAML: line 1, column 12: expected the node ",
        f"--kubeconfig={broken}",
    )
    folded = "      not looked at without it: start, server, identity, clock, permissions, deploy"
    assert [line for line in told.lines if line.startswith(folded)] != []
    assert [line for line in told.lines if line.startswith("skip")] == []


@servers.only_real
async def test_wrong_authority(env: Environment, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=env.server.url, token="x", ca_file=OTHER_CA)

    # What follows are the TLS library's own words, which change from version to version.
    await finds(
        env,
        f"fail  server: {env.server.url}: its certificate is not trusted: ",
        f"--kubeconfig={kubeconfig}",
    )


@servers.only_builtin
async def test_server_unreachable(env: Environment, tmp_path: Path) -> None:
    url = f"http://{ports.LOOPBACK}:{ports.pick_port()}"
    kubeconfig = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(kubeconfig, url=url, token="x")

    told = await finds(
        env,
        f"fail  server: {url}: nothing listens there, or no way leads there",
        f"--kubeconfig={kubeconfig}",
    )

    # The provider and its cloud are looked at all the same.
    assert any(line.startswith("ok    cloud: the cloud answers") for line in told.lines)


async def test_token_rejected(env: Environment, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(
        kubeconfig, url=env.server.url, token="expired", ca_file=env.server.ca_file
    )

    await finds(
        env,
        "fail  identity: the API server does not accept our credentials",
        f"--kubeconfig={kubeconfig}",
    )


@servers.only_builtin
async def test_cloud_config_broken(env: Environment) -> None:
    env.cloud_config.write_text("url: nowhere\ntimeout: soon\n")

    told = await finds(
        env,
        f"fail  cloud-config: {env.cloud_config}: url is 'nowhere'; it must look like "
        "http://host:port",
    )

    assert any("token is missing" in line for line in told.lines)
    assert any("timeout is 'soon'" in line for line in told.lines)


@servers.only_builtin
async def test_cloud_credentials_wrong(env: Environment) -> None:
    env.configure_cloud(token="not-the-token")

    told = await finds(env, "fail  cloud: the cloud does not accept the credentials: ")

    assert "not-the-token" not in "\n".join(told.lines)


@servers.only_builtin
async def test_cloud_unreachable(env: Environment) -> None:
    env.configure_cloud(url=f"http://{ports.LOOPBACK}:{ports.pick_port()}")

    await finds(env, "fail  cloud: the cloud does not answer: ")


@servers.only_builtin
async def test_cloud_silent(env: Environment) -> None:
    """A cloud that accepts and says nothing costs one deadline, not patience."""
    env.configure_cloud(timeout="30s")
    env.cloud.settings = msgspec.structs.replace(env.cloud.settings, latency_s=30.0)

    await finds(env, "fail  cloud: not finished within 6 s", "--timeout=6s")


HANGING = """
import time
from ccm import cloud

@cloud.provider(sdk="2.0")
async def open_cloud(context):
    time.sleep(600)
    yield cloud.Cloud(name="hanging", has_cluster_id=True)
"""


@servers.only_builtin
async def test_a_provider_that_blocks_everything(env: Environment) -> None:
    """Not even then the command hangs; what was found before is printed already."""
    words = ["--cloud-provider=hanging", f"--kubeconfig={env.server.kubeconfig_path}"]

    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ccm.cli", "doctor", "--timeout=2s", *words),
        env={**os.environ, **install(env.folder, "hanging", HANGING)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, complaint = await asyncio.wait_for(child.communicate(), 50)

    assert child.returncode == 1
    assert b"\nok    provider: hanging (ccm_hanging:open_cloud, ccm-hanging 1.0)\n" in said
    assert complaint == b"kube-ccm doctor: cloud-config: hangs and cannot be cancelled, given up\n"
