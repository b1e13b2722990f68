"""What is taken out of log lines, and what is left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest

from ccm.base import credentials, redact

M = redact.MASK


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have made secrets known."""
    monkeypatch.setattr(redact, "_lasting", {})
    monkeypatch.setattr(redact, "_transient", deque(maxlen=redact.TRANSIENT))
    monkeypatch.setattr(redact, "_held", {})
    monkeypatch.setattr(redact, "_needles", None)


@pytest.fixture
def known() -> Iterator[None]:
    """One secret the process knows."""
    redact.know('s3"cret/x')
    yield
    redact.forget('s3"cret/x')


@pytest.mark.parametrize(("lasting", "most"), [(True, redact.LASTING), (False, redact.TRANSIENT)])
def test_the_newest_secrets_are_known(lasting: bool, most: int) -> None:
    every = [f"rotated-{number:04d}" for number in range(most + 1)]
    for secret in every:
        redact.know(secret, lasting=lasting)

    assert [secret for secret in every if redact.words(secret) == secret] == every[:1]


@pytest.mark.parametrize("learn", [redact.know, lambda secret: redact.hold("owner", secret)])
def test_a_secret_that_is_longer_than_any_credential_is_refused(
    learn: Callable[[str], None],
) -> None:
    with pytest.raises(ValueError, match=f"{credentials.MOST_BYTES} bytes.* has 300000$"):
        learn("x" * 300_000)


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("Authorization: Bearer abc.DEF", f"Authorization: Bearer {M}"),
        ("'Authorization': 'Basic dXNlcjpwYXNz'", f"'Authorization': 'Basic {M}'"),
        ("Authorization: Bearer secret", f"Authorization: Bearer {M}"),
        ("authorization: Bearer abc def", f"authorization: Bearer {M} def"),
        ("sent Bearer abcdef1", f"sent Bearer {M}"),
        ("authorization=abcdef", f"authorization={M}"),
        ("Authorization: Token abc", f"Authorization: Token {M}"),
        (
            "Authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=h;d, Signature=c end",
            f"Authorization: AWS4-HMAC-SHA256 {M} end",
        ),
        ("Cookie: a=b; c=d", f"Cookie: {M}"),
        ("https://me:pw@host/path", f"https://{M}@host/path"),
        ("https://token@host", f"https://{M}@host"),
        ("https://me:p/w@host/path", f"https://{M}@host/path"),
        ("https://me:p@w@host/path?m=a@b", f"https://{M}@host/path?m=a@b"),
        ("GET /x?token=abc&n=1", f"GET /x?token={M}&n=1"),
        ('password="a \\"b" n=1', f'password="{M}" n=1'),
        ('{"clientSecret": "abc", "n": 1}', f'{{"clientSecret": "{M}", "n": 1}}'),
        ('err="body {\\"token\\":\\"abc\\"}"', f'err="body {{\\"token\\":\\"{M}\\"}}"'),
        ("X-Auth-Token: abc", f"X-Auth-Token: {M}"),
        ("x-api-key: abc", f"x-api-key: {M}"),
        ("password: abc, next", f"password: {M}, next"),
        ("password = abc", f"password = {M}"),
        ("password: hunter", f"password: {M}"),
        ("password: 12345678 is wrong", f"password: {M} is wrong"),
        ("dbPassword: hunter2 adminPass=abc", f"dbPassword: {M} adminPass={M}"),
        ("smtp-password: hunter2", f"smtp-password: {M}"),
        ("token='a\"b'", f"token='{M}'"),
        ("run --token abc1 now", f"run --token {M} now"),
        ("['--password', 'abc']", f"['--password', '{M}']"),
        ("https://h/x?sv=1&sig=a%2Bc%3D&n=1", f"https://h/x?sv=1&sig={M}&n=1"),
        ("X-Amz-Signature=abc", f"X-Amz-Signature={M}"),
        ("to=https%3A%2F%2Fh%3Ftoken%3Dabc", f"to=https%3A%2F%2Fh%3Ftoken%3D{M}"),
        ("{b'X-Auth-Token': b'abc'}", f"{{b'X-Auth-Token': b'{M}'}}"),
        ("map[X-Auth-Token:[abc] Accept:[*]]", f"map[X-Auth-Token:[{M}] Accept:[*]]"),
        ("<password>abc</password>", f"<password>{M}</password>"),
        ('{Password:"a b" Region:y}', f'{{Password:"{M}" Region:y}}'),
        ("secret_id: abc1 secretId=abc", f"secret_id: {M} secretId={M}"),
        ("client_secret=abc&n=1", f"client_secret={M}&n=1"),
        ("got eyJhbGciOiJSUzI1.eyJpc3M.c2ln end", f"got {M} end"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY----- x", f"{M} x"),
        ("-----BEGIN PRIVATE KEY-----\\nabc", M),
        (
            "private_key: |\n  -----BEGIN PRIVATE KEY-----\n  abc\n  -----END KEY-----\nn: 1",
            f"private_key: |\n  {M}\nn: 1",
        ),
        ("used abcdef.0123456789abcdef.", f"used {M}."),
        ("join --x=07401b.f395accd246ae52d\\nrun", f"join --x={M}\\nrun"),
        ("a\\n07401b.f395accd246ae52d", f"a\\n{M}"),
    ],
)
def test_what_looks_secret_is_masked(said: str, written: str) -> None:
    assert redact.words(said) == written
    assert redact.words(written) == written


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ('{"a":"password:","b":5}', '{"a":"password:","b":5}'),
        ('{"token":3,"n":1.5}', f'{{"token":"{M}","n":1.5}}'),
        (
            '{"pwd":3,"token":[{"a":["x",null,""]}]}',
            f'{{"pwd":"{M}","token":[{{"a":["{M}",null,""]}}]}}',
        ),
        ('{"a":"token: x","token":-1}', f'{{"a":"token: {M}","token":"{M}"}}'),
        ('{"n":12345678,"token=x":1}', f'{{"n":"{M}","token={M}":1}}'),
        ('{"token=3', f'{{"token={M}'),
    ],
)
def test_a_line_of_json_stays_json(said: str, written: str) -> None:
    redact.know("1234567")

    assert redact.line(said.encode()).decode() == written
