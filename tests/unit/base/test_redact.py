"""What is taken out of log lines, and what is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from ccm.base import redact

M = redact.MASK


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have made secrets known."""
    monkeypatch.setattr(redact, "_lasting", set())
    monkeypatch.setattr(redact, "_transient", deque(maxlen=redact.TRANSIENT))
    monkeypatch.setattr(redact, "_needles", ())


@pytest.fixture
def known() -> Iterator[None]:
    """One secret the process knows."""
    redact.know('s3"cret/x')
    yield
    redact.forget('s3"cret/x')


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    "form",
    ['s3"cret/x', 's3\\"cret/x', "s3%22cret%2Fx", "czMiY3JldC94"],
    ids=["raw", "json", "url", "b64"],
)
def test_a_known_secret_is_masked_however_it_is_written(form: str) -> None:
    assert redact.words(f"before {form} after") == f"before {M} after"


@pytest.mark.usefixtures("known")
def test_what_is_forgotten_is_written_again() -> None:
    redact.forget('s3"cret/x')

    assert redact.words('s3"cret/x') == 's3"cret/x'


def test_short_words_are_not_looked_for() -> None:
    redact.know("node")

    assert redact.words("node") == "node"


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("Authorization: Bearer abc.DEF", f"Authorization: Bearer {M}"),
        ("'Authorization': 'Basic dXNlcjpwYXNz'", f"'Authorization': 'Basic {M}'"),
        ("Authorization: Bearer secret", f"Authorization: Bearer {M}"),
        ("sent Bearer abcdef1", f"sent Bearer {M}"),
        ("authorization=abcdef", f"authorization={M}"),
        ("https://me:pw@host/path", f"https://{M}@host/path"),
        ("https://token@host", f"https://{M}@host"),
        ("GET /x?token=abc&n=1", f"GET /x?token={M}&n=1"),
        ('password="a \\"b" n=1', f'password="{M}" n=1'),
        ('{"clientSecret": "abc", "n": 1}', f'{{"clientSecret": "{M}", "n": 1}}'),
        ('err="body {\\"token\\":\\"abc\\"}"', f'err="body {{\\"token\\":\\"{M}\\"}}"'),
        ("got eyJhbGciOiJSUzI1.eyJpc3M.c2ln end", f"got {M} end"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- x", f"{M} x"),
        ("-----BEGIN PRIVATE KEY-----\\nabc", M),
    ],
)
def test_what_looks_secret_is_masked(said: str, written: str) -> None:
    assert redact.words(said) == written


@pytest.mark.parametrize(
    "said",
    [
        "token file cannot be read",
        "/var/run/secrets/kubernetes.io/serviceaccount/token: no such file",
        "https://host:6443/api/v1/nodes?watch=true",
        'key="node-1" node="a"',
        "basic authentication and bearer tokens",
        'msg="secret" resource="secrets"',
        "mail me@example.com",
    ],
)
def test_what_is_harmless_stays(said: str) -> None:
    assert redact.words(said) == said


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("token", True),
        ("apiToken", True),
        ("client_secret", True),
        ("PASSWORD", True),
        ("api-key", True),
        ("tokenFile", False),
        ("region", False),
        ("key_pair", False),
    ],
)
def test_names_tell_which_settings_are_secret(name: str, secret: bool) -> None:
    assert redact.is_secret(name) is secret


def test_of_secrets_that_replace_each_other_the_newest_are_known() -> None:
    tokens = [f"rotated-{number:03d}" for number in range(redact.TRANSIENT + 1)]

    for token in tokens:
        redact.know(token, lasting=False)
    shown = [token for token in tokens if redact.words(token) == token]
    for token in tokens:
        redact.forget(token)

    assert shown == tokens[:1]
