"""Credentials are rotated under load: no reconcile fails, whether the new ones work or not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ccm.sandbox import realserver
from tests import pki, servers
from tests.faults import FaultProxy, Match
from tests.scenario import harness
from tests.scenario.harness import Daemon, Environment

USED = "changed file applied"
REFUSED = "changed file rejected, keeping the previous content"
FAILED = (
    "reconcile failed",
    "cloud or API server unavailable",
    "pass failed",
    "list or watch failed",
    "cannot acquire or renew lease",
)
SETTINGS = ("kubeconfig", "cloud-config")


@contextlib.asynccontextmanager
async def under_load(env: Environment, daemon: Daemon) -> AsyncIterator[None]:
    """New nodes all the time; in the end all of them are initialised, and nothing has failed."""
    stop = asyncio.Event()
    names: list[str] = []

    async def load() -> None:
        while not stop.is_set():
            names.append(f"node-{len(names)}")
            await env.node(names[-1])
            await asyncio.sleep(0.1)

    busy = asyncio.get_running_loop().create_task(load())
    try:
        yield
    finally:
        stop.set()
        await busy
    await env.cluster.initialised(*names)
    assert [line for line in daemon.lines() if line["msg"].startswith(FAILED)] == []


def credentials_sent(proxy: FaultProxy, since: int) -> set[str]:
    """The last words of the Authorization headers of requests after the first so many."""
    found = proxy.requests(Match(where=lambda one: "authorization" in one.headers))[since:]
    return {one.headers["authorization"].rpartition(" ")[2] for one in found}


@pytest.mark.row("daemon-reload-01", "daemon-reload-02")
@pytest.mark.timeout(180)
@pytest.mark.both_servers
async def test_tokens_are_rotated_under_load(env: Environment) -> None:
    """In the files that configurations name, and in the configurations themselves."""
    proxy = await env.new_proxy()
    kubeconfig, kube_token = env.folder / "rotated.kubeconfig", env.folder / "kube-token"
    cloud_token = env.folder / "cloud-token"
    kube_token.write_text(env.token)
    cloud_token.write_text(env.cloud.token)
    harness.write_kubeconfig(kubeconfig, proxy.url, {"tokenFile": str(kube_token)})
    env.configure_cloud(token="", token_file=str(cloud_token))
    env.cloud.next_token = "fresh"
    daemon = await env.start(kubeconfig=kubeconfig, proxy=proxy, flags={"v": "4"})
    await daemon.says("became leader")

    async def both(outcome: str, change: Callable[[], None], *, times: int) -> None:
        change()
        for setting in SETTINGS:
            await daemon.says(outcome, setting=setting, count=times)
        # The daemon continues with its current credentials.
        writes = len(proxy.requests(harness.NODE_WRITE))
        await proxy.wait_for(harness.NODE_WRITE, count=writes + 3, answered=True)

    def broken_files() -> None:
        kube_token.write_text("wrong")
        cloud_token.write_text("wrong")

    def good_files() -> None:
        kube_token.write_text(env.server.token)
        cloud_token.write_text("fresh")

    def broken_configurations() -> None:
        realserver.write_kubeconfig(kubeconfig, url=proxy.url, token="wrong")
        env.configure_cloud(token="wrong")

    def good_configurations() -> None:
        realserver.write_kubeconfig(kubeconfig, url=proxy.url, token=env.token)
        env.configure_cloud(token="fresh", timeout="4s")

    async with under_load(env, daemon):
        await both(REFUSED, broken_files, times=1)
        await both(USED, good_files, times=1)
        # The old one is no longer valid, and no connection keeps it.
        env.cloud.token, env.cloud.next_token = "fresh", ""
        seen = len(proxy.requests(Match()))
        await both(REFUSED, broken_configurations, times=2)
        assert credentials_sent(proxy, seen) == {env.server.token, "wrong"}
        await both(USED, good_configurations, times=2)

    reasons = [
        event["reason"]
        for event in await env.cluster.events("cloud-controller-manager")
        if event["reason"].startswith("Config")
    ]
    assert sorted(set(reasons)) == ["ConfigRejected", "ConfigReloaded"]
    assert await daemon.stop() == 0


@pytest.mark.row("daemon-reload-03")
@pytest.mark.envtest
@pytest.mark.timeout(180)
async def test_client_certificates_are_rotated_under_load(tmp_path: Path) -> None:
    """The server sees the new certificate, and no request without a valid one."""
    ours, others = pki.Authority(tmp_path, "ours"), pki.Authority(tmp_path, "others")
    shown = pki.Files(chain=tmp_path / "chain.pem", key=tmp_path / "key.pem")

    def show(authority: pki.Authority, user: str) -> None:
        """Replace certificate and key one after the other."""
        files = authority.client(user, [realserver.ADMIN_GROUP])
        shown.chain.write_bytes(files.chain.read_bytes())
        shown.key.write_bytes(files.key.read_bytes())

    show(ours, "first")
    audit = tmp_path / "audit.log"
    async with (
        realserver.open_real_apiserver(
            servers.require_assets(),
            tmp_path / "server",
            audit_log=audit,
            extra_args=[f"--client-ca-file={ours.file}"],
        ) as server,
        harness.open_environment(server, tmp_path) as env,
    ):
        kubeconfig = tmp_path / "rotated.kubeconfig"
        user = {"client-certificate": str(shown.chain), "client-key": str(shown.key)}
        harness.write_kubeconfig(kubeconfig, server.url, user, ca_file=server.ca_file)
        daemon = await env.start(kubeconfig=kubeconfig, flags={"v": "4"})
        await daemon.says("became leader")

        async with under_load(env, daemon):
            show(ours, "second")
            await daemon.says(USED, setting="kubeconfig")
            show(others, "third")
            await daemon.says(REFUSED, setting="kubeconfig")
            await asyncio.sleep(0.5)
        assert await daemon.stop() == 0

    entries = [json.loads(line) for line in audit.read_text().splitlines()]
    writers = [
        entry["user"]["username"]
        for entry in entries
        if entry.get("userAgent", "").startswith("cloud-controller-manager/")
        and entry["verb"] in ("create", "update", "patch")
    ]
    assert set(writers) == {"first", "second"}
    assert writers[-1] == "second"


UNKNOWN = "cannot acquire or renew lease, retrying"


@pytest.mark.both_servers
async def test_a_refused_token_is_retried_with_back_off_until_it_is_replaced(
    env: Environment,
) -> None:
    """401 at start is logged once; a new token is used at once."""
    token = env.folder / "token"
    token.write_text("wrong")
    proxy = await env.new_proxy()
    await env.node("alpha")
    kubeconfig = env.folder / "kubeconfig"
    harness.write_kubeconfig(kubeconfig, proxy.url, {"tokenFile": str(token)})
    daemon = await env.start(kubeconfig=kubeconfig)
    await daemon.says(UNKNOWN)
    refused = await proxy.wait_for(Match(), count=13)
    assert {exchange.status for exchange in refused} <= {401, None}
    # Every half second or slower the Lease, and now and then its watch.
    assert refused[12].started_s - refused[0].started_s >= 2.0
    token.write_text(env.token)
    await env.cluster.initialised("alpha")

    assert len(daemon.lines(UNKNOWN)) == 1
    assert len(daemon.lines("became leader")) == 1
