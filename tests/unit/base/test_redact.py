"""Masking of secrets in log lines and other text."""

from __future__ import annotations

import base64
import json
import time
from collections import deque
from collections.abc import Callable

import pytest

from ccm.base import credentials, redact

M = redact.MASK


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets that other tests of this process registered."""
    monkeypatch.setattr(redact, "_lasting", {})
    monkeypatch.setattr(redact, "_transient", deque(maxlen=redact.MAX_TRANSIENT))
    monkeypatch.setattr(redact, "_held", {})
    monkeypatch.setattr(redact, "_needles", None)


@pytest.mark.parametrize(
    ("lasting", "most"), [(True, redact.MAX_LASTING), (False, redact.MAX_TRANSIENT)]
)
def test_oldest_secret_is_forgotten_beyond_the_limit(lasting: bool, most: int) -> None:
    every = [f"rotated-{number:04d}" for number in range(most + 1)]
    for secret in every:
        redact.register(secret, lasting=lasting)

    assert [secret for secret in every if redact.mask_text(secret) == secret] == every[:1]


@pytest.mark.parametrize(
    "learn", [redact.register, lambda secret: redact.set_owner_secrets("owner", secret)]
)
def test_too_long_secret_is_refused(learn: Callable[[str], None]) -> None:
    with pytest.raises(ValueError, match=f"{credentials.MAX_BYTES} bytes.* has 300000$"):
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
def test_text_that_looks_like_a_secret_is_masked(said: str, written: str) -> None:
    assert redact.mask_text(said) == written
    assert redact.mask_text(written) == written


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
def test_masked_json_line_stays_valid_json(said: str, written: str) -> None:
    redact.register("1234567")

    assert redact.mask_log_line(said.encode()).decode() == written


@pytest.mark.parametrize(
    "said",
    [
        "/var/run/secrets/kubernetes.io/serviceaccount/token: no such file",
        "basic authentication and bearer tokens; authorization: denied by policy",
        'msg="secret" resource="secrets" key="node-1"',
        "token expired",
        "password: must not be empty",
        "node token-1 is ready",
        "https://host:6443/users/me@example.com?mail=a@b",
        'secrets is forbidden: User "system:serviceaccount:kube-system:ccm" cannot list "secrets"',
        "use --service-account-credentials=true",
        "token=null&n=1 password: none, secret=false; {'token': None} x.token == None",
        "tokens: 5 max_tokens=4096, passwords: 0 secrets=2.5 sig=15",
        "<token/> <password></password> <secrets>\n  <name>x</name>\n</secrets>",
        "secrets:\n  - name: x\ntoken:\n  file: /x\npassword:\n  from:\n    env: X",
        "compass=3 bypass: on, adminPassed=1 design=5",
        "worker.examplehostname1 is ready, worker.example0host1234.internal too",
        "registry.k8s.io/pause@sha256:0123456789abcdef0123456789abcdef",
        "m-nosecret: spec.secretRef is missing; name a Secret",
        "machines pool-token: Pending: Ordered, pool-passwords: VM was refused",
        "m-nosecret: hunter, next",
    ],
)
def test_harmless_text_is_not_masked(said: str) -> None:
    assert redact.mask_text(said) == said
    assert redact.mask_log_line(said.encode()) == said.encode()


@pytest.mark.parametrize("secret", ["hunter2-hunter2", "a?b>c~d>e?f", "p\u00e4sswort", "x\ny" * 9])
def test_known_secret_is_masked_inside_base64_of_a_longer_text(secret: str) -> None:
    redact.register(secret)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before, after in (("", ""), ("u:", "x"), ("us:", "xy"), ("usr:", "xyz")):
            shown = redact.mask_text(encode(f"{before}{secret}{after}".encode()).decode())
            # The first and last base64 digits also hold bits of the neighbouring bytes.
            assert M in shown
            assert base64.b64encode(secret.encode())[4:12].decode() not in shown


def test_owned_secret_is_masked_until_its_last_owner_releases_it() -> None:
    redact.register("node")
    redact.set_owner_secrets("owner", "held-secret", "other-secret")
    redact.set_owner_secrets("another", "held-secret")
    text = "held-secret other-secret node"
    assert redact.mask_text(text) == f"{M} {M} node"
    redact.remove_owner("owner")
    assert redact.mask_text(text) == f"{M} other-secret node"
    redact.remove_owner("another")
    assert redact.mask_text(text) == text


@pytest.mark.parametrize("between", ["\n", ":\n\n  \t"])
def test_multi_line_secret_is_masked_despite_line_prefixes(between: str) -> None:
    secret = between.join(("first77-of-sixteen", "second88-of-sixteen"))
    redact.register(secret)
    rows = f"bad: {secret} end".split("\n")

    for margin in ("\n  | ", "\\n    | ", "\n  + ", "\n\t"):
        said = redact.mask_text(margin.join(rows))
        assert "second88" not in said
        assert said.endswith("end")


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("m-mysecret: hunter2 is wrong", f"m-mysecret: {M} is wrong"),
        ('m-nosecret: "hunter" is wrong', f'm-nosecret: "{M}" is wrong'),
        ("m-nosecret: wrong token: abc", f"m-nosecret: wrong token: {M}"),
        ("x-secret: hunter", f"x-secret: {M}"),
        ("mail_password: hunter", f"mail_password: {M}"),
    ],
)
def test_secret_after_an_object_name_is_masked(said: str, written: str) -> None:
    assert redact.mask_text(said) == written


@pytest.mark.parametrize(
    ("names", "secret"),
    [("token apiToken client_secret PASSWORD api-key", True), ("tokenFile key_pair", False)],
)
def test_secret_settings_are_recognized_by_name(names: str, secret: bool) -> None:
    assert {redact.is_secret_name(name) for name in names.split()} == {secret}


def test_public_text_is_masked_before_it_is_truncated() -> None:
    said = redact.mask_for_api("é" * 505 + " password: abcdefghijklmnop " + "x" * 9000)

    assert len(said.encode()) <= redact.MAX_PUBLIC_BYTES
    assert said.endswith("...")
    assert "abc" not in said


@pytest.mark.parametrize("secret", ["hunter2-" * 40, "hunter2-" * 400])
def test_partial_secret_at_the_truncation_is_removed(secret: str) -> None:
    redact.register(secret)
    for whole in (1, 7, 100, len(secret) // 2, len(secret) - 2):
        said = redact.mask_text("x " * ((redact.MAX_CHARACTERS - whole) // 2) + secret)
        assert "hunter" not in said
        assert len(said) <= redact.MAX_CHARACTERS


def test_masking_hostile_text_takes_bounded_time() -> None:
    """The texts of 64 KiB would take quadratic time with a careless pattern."""
    before = time.process_time()
    for piece in (
        "token='eyJ-://a:",
        "\\",
        "--token ",
        "\\u0041",
        "a0.",
        "m-token: a b ",
        "cookie=a; ",
    ):
        redact.mask_log_line((piece * ((1 << 16) // len(piece))).encode())
    redact.set_owner_secrets(1, "ab" * (credentials.MAX_HEADER_BYTES // 2))
    redact.register(json.dumps({"key": "\n" * (credentials.MAX_BYTES // 4)}))
    redact.mask_log_line(b"x" * 300)
    assert time.process_time() - before < 10
