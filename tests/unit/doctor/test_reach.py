"""Why there was no answer, in words and with something to do."""

from __future__ import annotations

import ssl
from typing import get_args

import pytest

from ccm.doctor import reach
from ccm.doctor.finding import Verdict
from ccm.kube import errors


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
