"""Whom the HTTPS server believes: flags, files and the cluster's own settings."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ccm.app import options
from ccm.app.provider import Misconfigured
from ccm.app.trust import CHECK_S, RETRY_S, Believed
from ccm.kube import errors
from ccm.serving.authentication import Trust
from ccm.serving.certs import CertificateError
from ccm.testing.clock import advance
from tests import pki

pytestmark = pytest.mark.virtual_time

DOWN = errors.Unreachable("refused", kind="refused")
REFUSED = errors.Forbidden(status=403, reason="Forbidden", message="not you")
STRANGE = errors.Unauthorized(status=401, reason="Unauthorized", message="who are you")
ABSENT = errors.Missing(status=404, reason="NotFound", message="no such map")


class Api:
    """An API server whose config map is this."""

    def __init__(self, content: Any) -> None:
        self.content = content
        self.asked = 0

    async def raw(
        self, method: str, path: str, *, body: bytes | None = None, retry: bool = True
    ) -> bytes:
        self.asked += 1
        if isinstance(self.content, Exception):
            raise self.content
        return json.dumps({"data": self.content}).encode()


class Server:
    """Notes whom it is to believe."""

    def __init__(self) -> None:
        self.trust = Trust()
        self.changes = 0

    def adopt(self, trust: Trust) -> None:
        self.trust = trust
        self.changes += 1


@pytest.fixture
def clients(tmp_path: Path) -> pki.Authority:
    return pki.Authority(tmp_path, "clients")


@pytest.fixture
def proxies(tmp_path: Path) -> pki.Authority:
    return pki.Authority(tmp_path, "proxies")


def settings(clients: pki.Authority, proxies: pki.Authority) -> dict[str, str]:
    """The config map of a cluster."""
    return {
        "client-ca-file": clients.own.decode(),
        "requestheader-client-ca-file": proxies.own.decode(),
        "requestheader-allowed-names": '["front"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }


def believed(api: Api | None, *flags: str) -> tuple[Believed, Server]:
    server = Server()
    chosen = options.parse(["--cloud-provider=sim", *flags])
    return Believed(chosen, api, server.adopt), server


async def run_for(kept: Believed, seconds: float = 0.0) -> None:
    """Let it follow for so long; what it raises is raised."""
    task = asyncio.create_task(kept.run())
    try:
        await advance(seconds)
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_clusters_own_settings_stand_in_for_flags(
    clients: pki.Authority, proxies: pki.Authority
) -> None:
    kept, server = believed(Api(settings(clients, proxies)))
    await kept.start()
    assert server.trust == Trust()
    assert kept.waiting

    await run_for(kept)

    assert not kept.waiting
    assert server.trust.clients.pem == clients.own
    assert server.trust.proxies.authorities.pem == proxies.own
    assert server.trust.proxies.names == ("front",)
    assert server.trust.proxies.user_headers == ("X-Remote-User",)
    assert server.trust.proxies.group_headers == ("X-Remote-Group",)
    assert server.trust.proxies.extra_prefixes == ("X-Remote-Extra-",)
    assert server.trust.pem is not None
    assert clients.own in server.trust.pem


@pytest.mark.parametrize("names", [(), ("gate", "door")])
async def test_flags_go_before_the_clusters_settings(
    clients: pki.Authority, proxies: pki.Authority, names: tuple[str, ...]
) -> None:
    flags = (
        f"--client-ca-file={proxies.file}",
        f"--requestheader-client-ca-file={clients.file}",
        "--requestheader-username-headers=x-user",
        f"--requestheader-allowed-names={','.join(names)}",
    )
    kept, server = believed(Api(settings(clients, proxies)), *flags)
    await kept.start()
    await run_for(kept)

    assert server.trust.clients.pem == proxies.own
    assert server.trust.proxies.authorities.pem == clients.own
    assert server.trust.proxies.user_headers == ("x-user",)
    assert server.trust.proxies.names == names


@pytest.mark.row("serving-lookup-01")
async def test_settings_that_may_not_be_read_end_the_process() -> None:
    kept, _ = believed(Api(REFUSED))
    await kept.start()

    with pytest.raises(Misconfigured, match=r"grant the role .* or pass --authentication-"):
        await kept.run()


@pytest.mark.row("serving-lookup-02")
@pytest.mark.parametrize(
    ("trouble", "flags", "asked"),
    [
        pytest.param(REFUSED, ["--authentication-tolerate-lookup-failure"], 1, id="tolerated"),
        pytest.param(REFUSED, ["--authentication-skip-lookup"], 0, id="skipped"),
        pytest.param(ABSENT, [], 1, id="not there"),
    ],
)
async def test_the_server_runs_without_them_if_that_is_in_order(
    trouble: Exception, flags: list[str], asked: int
) -> None:
    api = Api(trouble)
    kept, server = believed(api, *flags)
    await kept.start()

    await run_for(kept)

    assert api.asked == asked
    assert not kept.waiting
    assert server.trust == Trust()


@pytest.mark.row("serving-lookup-03")
@pytest.mark.parametrize("trouble", [DOWN, STRANGE], ids=["down", "credentials refused"])
async def test_an_api_server_that_does_not_answer_is_waited_for(
    clients: pki.Authority, proxies: pki.Authority, trouble: Exception
) -> None:
    api = Api(trouble)
    kept, server = believed(api)
    await kept.start()
    await run_for(kept)
    assert "was not read yet" in kept.waiting

    api.content = settings(clients, proxies)
    await run_for(kept, RETRY_S)

    assert not kept.waiting
    assert server.trust.clients.pem == clients.own


@pytest.mark.row("serving-lookup-04")
async def test_settings_that_change_are_followed(
    clients: pki.Authority, proxies: pki.Authority
) -> None:
    api = Api(settings(clients, proxies))
    kept, server = believed(api)
    await kept.start()
    await run_for(kept, CHECK_S)
    changes = server.changes
    assert server.trust.clients.pem == clients.own

    api.content = settings(proxies, clients)
    await run_for(kept, CHECK_S)

    assert server.trust.clients.pem == proxies.own
    assert server.changes == changes + 1


async def test_an_outage_later_changes_nothing(
    clients: pki.Authority, proxies: pki.Authority
) -> None:
    api = Api(settings(clients, proxies))
    kept, server = believed(api)
    await kept.start()
    await run_for(kept)
    changes = server.changes

    for trouble in (DOWN, REFUSED):
        api.content = trouble
        await run_for(kept, CHECK_S)

    assert server.trust.clients.pem == clients.own
    assert server.changes == changes


async def test_settings_that_make_no_sense_leave_the_old_ones(
    clients: pki.Authority, proxies: pki.Authority
) -> None:
    api = Api(settings(clients, proxies))
    kept, server = believed(api)
    await kept.start()
    await run_for(kept)

    for broken in ({"client-ca-file": "nonsense"}, {"requestheader-username-headers": "{"}):
        api.content = broken
        await run_for(kept, CHECK_S)

    assert server.trust.clients.pem == clients.own


async def test_a_file_is_read_again_when_it_changes(
    clients: pki.Authority, proxies: pki.Authority
) -> None:
    kept, server = believed(None, f"--client-ca-file={clients.file}")
    await kept.start()
    assert server.trust.clients.pem == clients.own

    clients.file.write_bytes(proxies.own)
    await run_for(kept, CHECK_S)

    assert server.trust.clients.pem == proxies.own


async def test_a_file_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for file in (tmp_path / "missing.pem", empty):
        kept, _ = believed(None, f"--client-ca-file={file}")
        with pytest.raises(Misconfigured, match="client authorities"):
            await kept.start()


async def test_what_tls_cannot_use_ends_the_start_too(clients: pki.Authority) -> None:
    def refuse(_trust: Trust) -> None:
        raise CertificateError("no")

    chosen = options.parse(["--cloud-provider=sim", f"--client-ca-file={clients.file}"])

    with pytest.raises(Misconfigured, match="no"):
        await Believed(chosen, None, refuse).start()
