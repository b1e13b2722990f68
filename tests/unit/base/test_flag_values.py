"""The kinds of flag values: what each reads and refuses, and how it is written."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ccm.base.flags import (
    ADDRESS,
    BOOL,
    CERTIFICATES,
    DURATION,
    FLOAT,
    GATES,
    INT32,
    LEVEL,
    LEVELS,
    NUMBERS,
    QUANTITY,
    STRINGS,
    VERSION,
    Kind,
    NamedCertificate,
)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *[(BOOL, word, True) for word in ("1", "t", "T", "true", "TRUE", "True")],
        *[(BOOL, word, False) for word in ("0", "f", "F", "false", "FALSE", "False")],
        (INT32, "-2147483648", -(2**31)),
        (INT32, "2147483647", 2**31 - 1),
        (INT32, "+5", 5),
        (LEVEL, "4", 4),
        (FLOAT, "20", 20.0),
        (FLOAT, "-.5e1", -5.0),
        (DURATION, "1h2m3.5s", timedelta(hours=1, minutes=2, seconds=3.5)),
        (STRINGS, "", ()),
        (STRINGS, "a,b", ("a", "b")),
        (STRINGS, "a,,b,", ("a", "", "b", "")),
        (STRINGS, " a, b", (" a", " b")),
        (NUMBERS, "", ()),
        (NUMBERS, "29,23", (29, 23)),
        (GATES, "A=true, B=false,,C=1", {"A": True, "B": False, "C": True}),
        (GATES, "", {}),
        (LEVELS, "node*=4,kube=2", (("node*", 4), ("kube", 2))),
        (QUANTITY, "0", 0),
        (QUANTITY, "64Ki", 65536),
        (
            CERTIFICATES,
            "a.crt,a.key",
            (NamedCertificate(cert_file="a.crt", key_file="a.key"),),
        ),
        (
            CERTIFICATES,
            "a.crt,a.key:*.a.example, b.example",
            (
                NamedCertificate(
                    cert_file="a.crt", key_file="a.key", names=("*.a.example", "b.example")
                ),
            ),
        ),
        *[(VERSION, text, text) for text in ("true", "false", "raw", "v1.36.3", "v1.2.3-rc.1")],
        (VERSION, "1", "true"),
    ],
)
def test_reads(kind: Kind[Any], text: str, value: object) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *[(BOOL, word) for word in ("", "yes", "on", "tRUE", "2", " true")],
        *[
            (INT32, word)
            for word in ("", "x", "1.5", " 1", "1_0", "017", "0x1F", "2147483648", "٣")
        ],
        (LEVEL, "-1"),
        *[(FLOAT, word) for word in ("", "nan", "inf", "1_0", " 1", "1,5")],
        *[(DURATION, word) for word in ("", "5", "5 s", "1d", "9999999999999999h")],
        *[(STRINGS, word) for word in ('a"b', '"a', '"a,b",c', "a\nb")],
        *[(NUMBERS, word) for word in ("a", "1,", "1, 2")],
        *[(ADDRESS, word) for word in ("", "host", "1.2.3", "1.2.3.04", "fe80::1%eth0")],
        *[(GATES, word) for word in ("A", "=true", "A=maybe")],
        *[(LEVELS, word) for word in ("a", "a=", "a=0", "a=-1", "=2", "a=²", "a=٣")],
        *[(kind, f"a={'9' * 5000}") for kind in (LEVELS, QUANTITY)],
        (QUANTITY, "9" * 5000),
        *[(QUANTITY, word) for word in ("", "1KB", "1 Ki", "Ki", "1.5M", "2e3")],
        *[(CERTIFICATES, word) for word in ("", "a.crt", "a,b,c", "a,", "a,b:", "a,b:c,")],
        *[(VERSION, word) for word in ("v1", "1.2.3", "later")],
    ],
)
def test_refuses(kind: Kind[Any], text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the parser's own business
        kind.parse(text)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (BOOL, False, "false"),
        (FLOAT, 20.0, "20"),
        (FLOAT, 0.5, "0.5"),
        (DURATION, timedelta(hours=12), "12h0m0s"),
        (STRINGS, (), "[]"),
        (NUMBERS, (29, 23), "[29,23]"),
        (GATES, {"B": True, "A": False}, "A=false,B=true"),
        (LEVELS, (("node*", 4),), "node*=4"),
        (ADDRESS, ADDRESS.parse("::"), "::"),
        (CERTIFICATES, CERTIFICATES.parse("a,b:c,d"), "[a,b:c,d]"),
        (CERTIFICATES, CERTIFICATES.parse("a,b"), "[a,b]"),
    ],
)
def test_writes(kind: Kind[Any], value: object, text: str) -> None:
    assert kind.write(value) == text
