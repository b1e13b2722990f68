"""Why there was no answer, in words and with something to do."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import get_args

import pytest

from ccm.app import options
from ccm.doctor import reach
from ccm.doctor.case import Case
from ccm.doctor.finding import Verdict
from ccm.kube import errors
from ccm.sandbox import realserver


@pytest.mark.parametrize("kind", get_args(errors.Trouble))
def test_every_trouble_has_words_and_advice(kind: errors.Trouble) -> None:
    found = reach._unreachable("https://x", errors.Unreachable("GET /version: why", kind=kind))

    assert found.verdict is Verdict.FAIL
    assert found.advice != ()
    assert found.details == ("GET /version: why",)


def test_the_tls_librarys_reason_is_told_however_deep_it_stands() -> None:
    deep = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] alert")
    middle = OSError("cannot connect")
    middle.__cause__ = deep
    top = errors.Unreachable("GET /version: cannot connect", kind="tls")
    top.__cause__ = middle

    found = reach._unreachable("https://x", top).found

    assert found.startswith("https://x: no TLS connection: ")


def test_plain_http_where_tls_was_begun_is_told_as_that() -> None:
    deep = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number")
    deep.reason = "WRONG_VERSION_NUMBER"
    top = errors.Unreachable("GET /version: cannot connect", kind="tls")
    top.__cause__ = deep

    found = reach._unreachable("https://x", top)

    assert found.found == "https://x: what answers there speaks no TLS"
    assert "http://" in found.advice[0]


def test_what_is_no_tls_error_has_no_reason() -> None:
    top = errors.Unreachable("GET /version: cannot connect", kind="tls")

    assert reach._unreachable("https://x", top).found == (
        "https://x: no TLS connection: the handshake failed"
    )


async def test_where_nothing_may_be_written_nothing_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(file, url="http://127.0.0.1:1", token="x")
    case = Case(options=options.parse([f"--kubeconfig={file}"]), environ={}, reads_only=True)

    async with case.exits:
        await reach.kubeconfig(case)
        with pytest.raises(errors.WriteRefused):
            await case.client.raw("POST", "/api/v1/namespaces/default/events")
