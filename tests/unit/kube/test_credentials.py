"""Credentials of exec plugins and service accounts: requested once and renewed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from ccm.base.credentials import KeyPair
from ccm.kube import errors, exec_plugin, serviceaccount
from ccm.kube.client import Client
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import StaticCredentials, TlsSettings, bearer
from ccm.kube.errors import NoCredentials
from ccm.kube.exec_plugin import ExecPlugin, ExecSettings
from ccm.kube.serviceaccount import ServiceAccount
from ccm.model.times import format_time
from tests.handclock import HandClock
from tests.unit.kube.proxy import Answer, Server, connect, cuts, refuses, says

V1 = "client.authentication.k8s.io/v1"

# Prints its next argument at each call, and records its input.
_PLUGIN = """
import os, pathlib, sys
folder = pathlib.Path(sys.argv[1])
calls = len(list(folder.glob("call-*")))
(folder / f"call-{calls}").write_text(os.environ["KUBERNETES_EXEC_INFO"])
(folder / "environ").write_text(os.environ.get("FLAVOUR", ""))
answers = sys.argv[2:]
print(answers[min(calls, len(answers) - 1)])
"""


def _answer(api_version: str = V1, **status: str) -> str:
    return json.dumps({"apiVersion": api_version, "kind": "ExecCredential", "status": status})


def _settings(tmp_path: Path, *answers: str, **changes: Any) -> ExecSettings:
    script = tmp_path / "plugin.py"
    script.write_text(_PLUGIN)
    fields: dict[str, Any] = {
        "api_version": V1,
        "command": sys.executable,
        "args": (str(script), str(tmp_path), *answers),
        "environ": {"FLAVOUR": "vanilla", "PATH": os.environ["PATH"]},
    }
    return ExecSettings(**{**fields, **changes})


def _calls(tmp_path: Path) -> list[Any]:
    return [json.loads(path.read_text()) for path in sorted(tmp_path.glob("call-*"))]


@pytest.mark.parametrize("version", exec_plugin.API_VERSIONS)
async def test_exec_plugin_runs_once_and_non_interactively(tmp_path: Path, version: str) -> None:
    answer = _answer(version, token="t1")
    plugin = ExecPlugin(_settings(tmp_path, answer, api_version=version))

    found = await asyncio.gather(*(plugin.current() for _ in range(3)))

    assert {credential.header for credential in found} == {"Bearer t1"}
    question = {"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}}
    assert _calls(tmp_path) == [question]
    assert (tmp_path / "environ").read_text() == "vanilla"


async def test_expired_exec_credential_is_renewed(hand: HandClock, tmp_path: Path) -> None:
    first = _answer(token="t1", expirationTimestamp="2026-01-01T00:20:00Z")
    plugin = ExecPlugin(_settings(tmp_path, first, _answer(token="t2")))

    before = (await plugin.current()).header
    hand.advance(199)  # 00:19:59
    kept = (await plugin.current()).header
    hand.advance(1)
    after = (await plugin.current()).header

    assert (before, kept, after) == ("Bearer t1", "Bearer t1", "Bearer t2")


async def test_rejected_exec_credential_is_replaced_once(hand: HandClock, tmp_path: Path) -> None:
    plugin = ExecPlugin(_settings(tmp_path, _answer(token="t1"), _answer(token="t2")))
    used = await plugin.current()
    hand.advance(1)
    sent_at = hand.monotonic()
    hand.advance(1)

    several = [await plugin.refresh_rejected(used, sent_at) for _ in range(3)]

    assert several == [True, True, True]
    assert len(_calls(tmp_path)) == 2
    assert not await plugin.refresh_rejected(await plugin.current(), sent_at)


async def test_exec_plugin_may_return_a_client_certificate(tmp_path: Path) -> None:
    answer = _answer(clientCertificateData="CERT", clientKeyData="KEY")

    credential = await ExecPlugin(_settings(tmp_path, answer)).current()

    assert credential.header is None
    assert credential.certificate is not None
    assert (credential.certificate.chain, credential.certificate.key) == (b"CERT", b"KEY")
    assert "KEY" not in repr(credential)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("secret garbage", "printed no ExecCredential"),
        ("", "printed no ExecCredential"),
        (_answer("client.authentication.k8s.io/v1beta1", token="t"), "v1beta1"),
        (json.dumps({"apiVersion": V1, "kind": "Other", "status": {"token": "t"}}), "Other"),
        (json.dumps({"apiVersion": V1, "kind": "ExecCredential"}), "neither a token"),
        (_answer(clientKeyData="KEY"), "only one of"),
        (_answer(token="t", expirationTimestamp="soon"), "expirationTimestamp"),
        (_answer(token="t", expirationTimestamp="9999-12-31T23:59:59-23:00"), "out of range"),
        (_answer(token="secret\nX: 1"), "invalid token: must be one line .* has 11 bytes$"),
        (_answer(token="secret" * 5_000), "invalid token: must be one line .* has 30000 bytes$"),
    ],
    ids=lambda text: text[-40:],
)
async def test_malformed_exec_credential_is_an_error(
    tmp_path: Path, answer: str, words: str
) -> None:
    plugin = ExecPlugin(_settings(tmp_path, answer))

    with pytest.raises(NoCredentials, match=words) as caught:
        await plugin.current()

    assert "secret" not in str(caught.value)


_FAILING = "import sys; print('log in first', file=sys.stderr); sys.exit(3)"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"args": ("-c", _FAILING)}, "code 3: log in first"),
        ({"command": "no-such-plugin", "install_hint": "here"}, "no-such-plugin.*here"),
    ],
    ids=["its words", "a hint"],
)
async def test_failing_exec_plugin_is_an_error_with_its_output(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(NoCredentials, match=words):
        await ExecPlugin(_settings(tmp_path, **changes)).current()


async def test_failed_exec_renewal_keeps_the_former_credential(
    hand: HandClock, tmp_path: Path
) -> None:
    answers = (_answer(token="t1"), "broken", "broken", _answer(token="t2"))
    plugin = ExecPlugin(_settings(tmp_path, *answers))
    used = await plugin.current()
    hand.advance(1)

    with capture_logs() as lines:
        renewed = [await plugin.refresh_rejected(used, hand.monotonic()) for _ in range(3)]

    assert renewed == [False, False, True]
    assert [line["log_level"] for line in lines] == ["warning", "info"]


async def test_exec_plugin_with_too_much_output_is_killed(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path / 'pid'}; head -c 50000000 /dev/zero; echo > {tmp_path / 'end'}"
    settings = _settings(tmp_path, command="/bin/sh", args=("-c", script))

    with pytest.raises(NoCredentials, match="printed more than 1 MiB"):
        await ExecPlugin(settings).current()

    await _gone(int((tmp_path / "pid").read_text()))
    assert not (tmp_path / "end").exists()


async def _gone(pid: int) -> None:
    """Wait until a process has ended; a zombie counts as ended."""
    while _state(pid) not in "ZX":
        await asyncio.sleep(0.01)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


async def test_exec_plugin_output_is_masked_before_it_is_truncated(tmp_path: Path) -> None:
    failing = "import sys; print('token=' + 'q' * 400, file=sys.stderr); sys.exit(3)"

    with pytest.raises(NoCredentials) as caught:
        await ExecPlugin(_settings(tmp_path, args=("-c", failing))).current()

    assert str(caught.value).endswith("code 3: token=[redacted]")


ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"


TOKEN = f"{ACCOUNTS}/node-controller/token"


@pytest_asyncio.fixture
async def account(server: Server, hand: HandClock) -> AsyncIterator[ServiceAccount]:
    credentials = StaticCredentials(bearer("our-own"))
    async with connect(server.url, credentials=credentials) as transport:
        yield ServiceAccount(Client(transport), namespace="kube-system", name="node-controller")


def token(hand: HandClock, text: str, life_s: float = 3600) -> Answer:
    expires = format_time(hand.now() + timedelta(seconds=life_s))
    return says({"status": {"token": text, "expirationTimestamp": expires}}, status=201)


def sent(server: Server) -> list[tuple[str, str]]:
    return [(seen.method, seen.target) for seen in server.seen]


async def test_missing_service_account_and_namespace_are_created(
    server: Server, account: ServiceAccount, hand: HandClock
) -> None:
    missing, made = refuses(404, "NotFound"), refuses(409, "AlreadyExists")
    # Another client may create the account at the same time.
    server.will(missing, missing, says({}), made, token(hand, "theirs"))

    assert (await account.current()).header == "Bearer theirs"

    assert sent(server) == [
        ("POST", TOKEN),
        ("POST", ACCOUNTS),
        ("POST", "/api/v1/namespaces"),
        ("POST", ACCOUNTS),
        ("POST", TOKEN),
    ]
    assert server.seen[1].json["metadata"]["name"] == "node-controller"


async def test_token_stays_in_use_until_its_renewal_succeeds(
    server: Server, account: ServiceAccount, hand: HandClock
) -> None:
    server.will(token(hand, "first"), refuses(403, "Forbidden"), token(hand, "second"))

    await account.current()
    hand.advance(3000)
    kept = [(await account.current()).header for _ in range(3)]
    hand.advance(serviceaccount.RETRY_S)
    renewed = (await account.current()).header

    assert (kept, renewed) == (["Bearer first"] * 3, "Bearer second")
    assert len(server.seen) == 3


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refuses(403, "Forbidden", "may not"), "may not"),
        (says({"status": {"token": ""}}), "contains no token"),
        (says({"status": {"token": "a"}}), ""),
        (says([]), ""),
    ],
    ids=["refused", "empty", "no end", "nonsense"],
)
async def test_missing_first_token_raises_no_credentials(
    server: Server, account: ServiceAccount, answer: Answer, words: str
) -> None:
    server.will(*[answer] * serviceaccount.MAX_ATTEMPTS)

    with pytest.raises(errors.NoCredentials, match=f"kube-system/node-controller: .*{words}"):
        await account.current()


async def test_first_token_request_is_retried_with_backoff(
    server: Server, account: ServiceAccount, hand: HandClock
) -> None:
    failed: list[Answer] = [refuses(500, "InternalError"), says({}), cuts]
    server.will(*failed, token(hand, "theirs"))

    assert (await account.current()).header == "Bearer theirs"
    assert hand.naps == [0.5, 1.0, 2.0]


async def test_rejected_service_account_token_is_replaced_once(
    server: Server, account: ServiceAccount, hand: HandClock
) -> None:
    server.will(token(hand, "first"), token(hand, "second"))
    first = await account.current()
    hand.advance(1)
    sent_at = hand.monotonic()

    answers = [await account.refresh_rejected(first, sent_at) for _ in range(2)]

    assert answers == [True, True]
    assert len(server.seen) == 2


async def test_service_account_token_is_requested_once_by_the_daemon(
    server: Server, account: ServiceAccount, hand: HandClock
) -> None:
    server.will(token(hand, "theirs"))

    found = await asyncio.gather(*(account.current() for _ in range(3)))

    assert {one.header for one in found} == {"Bearer theirs"}
    (seen,) = server.seen
    assert (seen.method, seen.target) == ("POST", TOKEN)
    assert seen.headers["Authorization"] == "Bearer our-own"
    assert seen.json["spec"] == {"expirationSeconds": 3600}
    assert account.user == "system:serviceaccount:kube-system:node-controller"


def test_service_account_config_omits_the_client_certificate() -> None:
    certificate = KeyPair(chain=b"chain", key=b"key")
    ours = ClusterConfig(
        server="https://host",
        credentials=StaticCredentials(),
        tls=TlsSettings(authorities=b"ca", certificate=certificate),
    )
    theirs = StaticCredentials(bearer("theirs"))

    acting = serviceaccount.with_credentials(ours, theirs)

    assert acting == replace(ours, credentials=theirs, tls=TlsSettings(authorities=b"ca"))


def _noted(note: Path) -> list[int]:
    return [int(pid) for pid in note.read_text().split()] if note.exists() else []


@pytest.mark.parametrize("gives_up", ["in time", "while it starts", "while it runs"])
async def test_abandoned_exec_plugin_is_killed_with_its_children(
    tmp_path: Path, gives_up: str
) -> None:
    # A child keeps the outputs open: waiting for their end would take a minute.
    note = tmp_path / "pids"
    script = f"sleep 60 & echo $$ $! > {note}; wait"
    settings = _settings(tmp_path, command="/bin/sh", args=("-c", script))
    timeout_s = 1.0 if gives_up == "in time" else 60.0
    plugin = ExecPlugin(settings, timeout_s=timeout_s)
    waiting = asyncio.create_task(plugin.current())

    if gives_up == "in time":
        with pytest.raises(NoCredentials, match="timed out after 1 s"):
            await waiting
    else:
        while gives_up == "while it runs" and not _noted(note):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    for pid in _noted(note):
        await _gone(pid)
