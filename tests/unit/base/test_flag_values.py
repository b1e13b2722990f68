"""The kinds of flag values: what each reads and refuses, and how it is written."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ccm.base import flag_values as values


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *[(values.BOOL, word, True) for word in ("1", "t", "T", "true", "TRUE", "True")],
        *[(values.BOOL, word, False) for word in ("0", "f", "F", "false", "FALSE", "False")],
        (values.INT32, "-2147483648", -(2**31)),
        (values.INT32, "2147483647", 2**31 - 1),
        (values.INT32, "+5", 5),
        (values.LEVEL, "4", 4),
        (values.FLOAT, "20", 20.0),
        (values.FLOAT, "-.5e1", -5.0),
        (values.DURATION, "1h2m3.5s", timedelta(hours=1, minutes=2, seconds=3.5)),
        (values.STRINGS, "", ()),
        (values.STRINGS, "a,b", ("a", "b")),
        (values.STRINGS, "a,,b,", ("a", "", "b", "")),
        (values.STRINGS, " a, b", (" a", " b")),
        (values.NUMBERS, "", ()),
        (values.NUMBERS, "29,23", (29, 23)),
        (values.GATES, "A=true, B=false,,C=1", {"A": True, "B": False, "C": True}),
        (values.GATES, "", {}),
        (values.LEVELS, "node*=4,kube=2", (("node*", 4), ("kube", 2))),
        (values.QUANTITY, "0", 0),
        (values.QUANTITY, "64Ki", 65536),
        (
            values.CERTIFICATES,
            "a.crt,a.key",
            (values.NamedCertificate(cert_file="a.crt", key_file="a.key"),),
        ),
        (
            values.CERTIFICATES,
            "a.crt,a.key:*.a.example, b.example",
            (
                values.NamedCertificate(
                    cert_file="a.crt", key_file="a.key", names=("*.a.example", "b.example")
                ),
            ),
        ),
        *[
            (values.VERSION, text, text)
            for text in ("true", "false", "raw", "v1.36.3", "v1.2.3-rc.1")
        ],
        (values.VERSION, "1", "true"),
    ],
)
def test_reads(kind: values.Kind[Any], text: str, value: object) -> None:
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *[(values.BOOL, word) for word in ("", "yes", "on", "tRUE", "2", " true")],
        *[
            (values.INT32, word)
            for word in ("", "x", "1.5", " 1", "1_0", "017", "0x1F", "2147483648", "٣")
        ],
        (values.LEVEL, "-1"),
        *[(values.FLOAT, word) for word in ("", "nan", "inf", "1_0", " 1", "1,5")],
        *[(values.DURATION, word) for word in ("", "5", "5 s", "1d", "9999999999999999h")],
        *[(values.STRINGS, word) for word in ('a"b', '"a', '"a,b",c', "a\nb")],
        *[(values.NUMBERS, word) for word in ("a", "1,", "1, 2")],
        *[(values.ADDRESS, word) for word in ("", "host", "1.2.3", "1.2.3.04", "fe80::1%eth0")],
        *[(values.GATES, word) for word in ("A", "=true", "A=maybe")],
        *[(values.LEVELS, word) for word in ("a", "a=", "a=0", "a=-1", "=2", "a=²", "a=٣")],
        *[(kind, f"a={'9' * 5000}") for kind in (values.LEVELS, values.QUANTITY)],
        (values.QUANTITY, "9" * 5000),
        *[(values.QUANTITY, word) for word in ("", "1KB", "1 Ki", "Ki", "1.5M", "2e3")],
        *[(values.CERTIFICATES, word) for word in ("", "a.crt", "a,b,c", "a,", "a,b:", "a,b:c,")],
        *[(values.VERSION, word) for word in ("v1", "1.2.3", "later")],
    ],
)
def test_refuses(kind: values.Kind[Any], text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is the parser's own business
        kind.parse(text)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (values.BOOL, False, "false"),
        (values.FLOAT, 20.0, "20"),
        (values.FLOAT, 0.5, "0.5"),
        (values.DURATION, timedelta(hours=12), "12h0m0s"),
        (values.STRINGS, (), "[]"),
        (values.NUMBERS, (29, 23), "[29,23]"),
        (values.GATES, {"B": True, "A": False}, "A=false,B=true"),
        (values.LEVELS, (("node*", 4),), "node*=4"),
        (values.ADDRESS, values.ADDRESS.parse("::"), "::"),
        (values.CERTIFICATES, values.CERTIFICATES.parse("a,b:c,d"), "[a,b:c,d]"),
        (values.CERTIFICATES, values.CERTIFICATES.parse("a,b"), "[a,b]"),
    ],
)
def test_writes(kind: values.Kind[Any], value: object, text: str) -> None:
    assert kind.write(value) == text
