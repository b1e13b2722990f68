"""The HTTPS server from the flags: pages, ports, and whom it asks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from ccm.app import options, reload
from ccm.app.health import (
    Checks,
    Vitals,
)
from ccm.app.http import (
    ServerContext,
    _transport,
    pages,
    serving,
)
from ccm.app.options import Options
from ccm.app.provider import Misconfigured
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Fixed, TlsSettings, bearer
from ccm.kube.transport import Transport
from ccm.sandbox import ports
from ccm.sandbox.realserver import write_kubeconfig
from tests import pki
from tests.unit.app.serving.api import Api
from tests.unit.kube.proxy import connect, serve
from tests.waiting import DEADLINE_S

NOWHERE = "http://127.0.0.1:1"


def chosen(*flags: str) -> Options:
    return options.parse(["--cloud-provider=sim", "--bind-address=127.0.0.1", *flags])


def context(transport: Transport, *flags: str) -> ServerContext:
    return ServerContext(options=chosen(*flags), vitals=Vitals(), transport=transport, environ={})


@contextlib.asynccontextmanager
async def running(*flags: str) -> AsyncIterator[tuple[asyncio.Task[None], str]]:
    """A server of these flags, far from any cluster; its task and its URL."""
    port = ports.pick_port()
    config = ClusterConfig(server=NOWHERE, credentials=Fixed(), tls=TlsSettings())
    async with (
        Transport(config) as transport,
        serving(context(transport, f"--secure-port={port}", *flags)) as task,
    ):
        yield task, f"https://127.0.0.1:{port}"


async def get(url: str, *, trusts: Path | None = None, **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=pki.client_context(trusts)) as response,
    ):
        return response.status, await response.text()


def test_the_pages() -> None:
    assert set(pages(chosen(), Checks(Vitals(), Api()), Vitals())) == {
        *("/healthz", "/healthz/", "/livez", "/livez/", "/readyz", "/readyz/"),
        *("/metrics", "/metrics/slis", "/configz", "/explain"),
    }


@pytest.mark.row("serving-matrix-05", "serving-tls-01")
async def test_outside_a_cluster_only_the_open_paths_are_served() -> None:
    async with running() as (_, url):
        found = {
            "/healthz": (await get(f"{url}/healthz"))[0],
            "/metrics": (await get(f"{url}/metrics"))[0],
            "with a token": (await get(f"{url}/healthz", Authorization="Bearer x"))[0],
        }

    assert found == {"/healthz": 200, "/metrics": 403, "with a token": 401}


async def test_open_paths_are_what_the_flag_says() -> None:
    async with running("--authorization-always-allow-paths=/metrics,/configz") as (_, url):
        assert (await get(f"{url}/healthz"))[0] == 403
        assert "kubernetes_build_info{" in (await get(f"{url}/metrics"))[1]
        configz = json.loads((await get(f"{url}/configz"))[1])

    (found,) = configz.values()
    assert found["kind"] == "CloudControllerManagerConfiguration"
    assert found["KubeCloudShared"]["RouteReconciliationPeriod"] == "10s"
    assert found["KubeCloudShared"]["CloudProvider"]["Name"] == "sim"
    assert found["Generic"]["Controllers"] == ["*"]
    assert found["Webhook"]["Webhooks"] is None


@pytest.mark.row("serving-start-02")
async def test_port_zero_means_no_server() -> None:
    async with running("--secure-port=0", "--client-ca-file=/does/not/exist") as (task, _):
        await asyncio.sleep(0.05)
        assert not task.done()


@pytest.mark.row("serving-start-01")
async def test_a_port_that_is_taken_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        opening = running(f"--secure-port={taken.getsockname()[1]}")

        with pytest.raises(Misconfigured, match="Address already in use"):
            await opening.__aenter__()


@pytest.mark.row("serving-start-01", "serving-tls-04")
@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--tls-cipher-suites=X", "'X' is unknown"),
        ("--tls-curve-preferences=1", "group 1 is unknown"),
        ("--client-ca-file=/none", "--client-ca-file=/none cannot be used: No such file or"),
        ("--requestheader-client-ca-file=/none", "=/none cannot be used: No such file or"),
        ("--authorization-kubeconfig=/none", "--authorization-kubeconfig=/none: no such file"),
        ("--tls-sni-cert-key=/none,/none", "--tls-sni-cert-key: /none cannot be read: No such"),
        ("--tls-cert-file=/none --tls-private-key-file=/x", "--tls-cert-file=/none cannot be read"),
        (
            f"--tls-cert-file={__file__} --tls-private-key-file=/none",
            "--tls-private-key-file=/none cannot be read: No such file or directory$",
        ),
        (
            f"--tls-cert-file={__file__} --tls-private-key-file={__file__}",
            "certificate cannot be used: it is not valid PEM$",
        ),
        ("--cert-dir=/proc/none", "cannot be kept in /proc/none: No such file or directory$"),
    ],
)
async def test_what_is_wrong_ends_the_task_with_a_message(flag: str, told: str) -> None:
    async with running(*flag.split()) as (task, _):
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({task})
        with pytest.raises(Misconfigured, match=told) as refused:
            task.result()
    assert "Errno" not in str(refused.value)


@pytest.mark.row("serving-tls-02")
async def test_a_certificate_directory_is_filled(tmp_path: Path) -> None:
    async with running(f"--cert-dir={tmp_path}") as (_, url):
        await get(f"{url}/healthz")

    made = {file.name for file in tmp_path.iterdir()}
    assert made == {"cloud-controller-manager.crt", "cloud-controller-manager.key"}


async def test_given_files_are_presented(tmp_path: Path) -> None:
    authority = pki.Authority(tmp_path, "authority")
    pair = authority.server("127.0.0.1")
    flags = (f"--tls-cert-file={pair.chain}", f"--tls-private-key-file={pair.key}")

    async with running(*flags) as (_, url):
        assert await get(f"{url}/livez", trusts=authority.file) == (200, "ok")


async def test_what_says_how_to_ask_about_callers_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "CHECK_S", 0.01)
    file = tmp_path / "kubeconfig"
    async with serve() as api, contextlib.AsyncExitStack() as stack:
        write_kubeconfig(file, url=api.url, token="first-token")
        flag = f"--authentication-kubeconfig={file}"
        transport = await _transport(
            stack, "authentication-kubeconfig", context(connect(api.url), flag)
        )
        assert transport is not None
        write_kubeconfig(file, url=api.url, token="another-token")
        async with asyncio.timeout(DEADLINE_S):
            while await transport.config.credentials.current() != bearer("another-token"):
                await asyncio.sleep(0.01)
