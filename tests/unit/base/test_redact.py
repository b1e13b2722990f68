"""What is taken out of log lines, and what is left."""

from __future__ import annotations

import base64
import json
import random
import string
import time
import tracemalloc
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


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("form", ['s3"cret/x', 's3\\"cret/x', "czMiY3JldC94"])
def test_a_known_secret_is_masked_in_json_and_base64_too(form: str) -> None:
    assert redact.words(f"before {form} after") == f"before {M} after"


@pytest.mark.parametrize("secret", ["hunter2-hunter2", "a?b>c~d>e?f", "p\u00e4sswort", "x\ny" * 9])
def test_base64_of_a_text_with_a_known_secret_is_masked_wherever_it_stands(secret: str) -> None:
    redact.know(secret)

    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for before in ("", "u:", "us:", "usr:"):
            for after in ("", "x", "xy", "xyz"):
                written = encode(f"{before}{secret}{after}".encode()).decode()
                shown = redact.words(f"sent {written}.")
                # A digit at either end holds bits of what stands beside it.
                assert M in shown
                assert len(shown) <= len(f"sent {M}.") + 20
                assert base64.b64encode(secret.encode())[4:12].decode() not in shown


@pytest.mark.usefixtures("known")
def test_what_is_forgotten_is_written_again() -> None:
    redact.forget('s3"cret/x')

    assert redact.words('s3"cret/x') == 's3"cret/x'


def test_short_words_are_not_looked_for() -> None:
    redact.know("node")

    assert redact.words("node") == "node"


def test_what_is_held_is_masked_until_it_is_released() -> None:
    redact.know("kept-secret", lasting=False)
    redact.hold("owner", "held-secret", "other-secret")
    redact.hold("another", "held-secret")
    text = "held-secret other-secret kept-secret"

    assert redact.words(text) == f"{M} {M} {M}"
    redact.release("owner")
    assert redact.words(text) == f"{M} other-secret {M}"
    redact.release("another")
    assert redact.words(text) == f"held-secret other-secret {M}"
    with redact.held("held-secret"):
        assert redact.words("held-secret") == M


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


def test_many_long_secrets_cost_bounded_memory_and_time() -> None:
    """A class's Secret may hold one of `MOST_BYTES`; a driver keeps 64 clients."""
    chance = random.Random(1)
    tracemalloc.start()
    for number in range(64):
        redact.hold(number, chance.randbytes(credentials.HEADER_BYTES // 2).hex())
    redact.know(json.dumps({"key": "\n" * (credentials.MOST_BYTES // 4)}))
    before = time.process_time()
    redact.line(b'{"msg":"' + b"x" * 300 + b'"}')
    took_s, peak = time.process_time() - before, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 24 << 20
    assert took_s < 2
    before = time.process_time()
    for _ in range(100):
        redact.line(b'{"msg":"' + b"x" * 300 + b'"}')
    assert time.process_time() - before < 1


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
    "said",
    [
        "token file cannot be read",
        "/var/run/secrets/kubernetes.io/serviceaccount/token: no such file",
        "https://host:6443/api/v1/nodes?watch=true",
        'key="node-1" node="a"',
        "basic authentication and bearer tokens",
        "authorization: denied by policy",
        'msg="secret" resource="secrets"',
        "mail me@example.com",
        "token expired",
        "password: must not be empty",
        "the token: expired at noon",
        "aws:///eu-west-1a/i-0abc",
        "node token-1 is ready",
        "https://host/users/me@example.com",
        "https://host:6443/x?mail=a@b",
        'secrets is forbidden: User "system:serviceaccount:kube-system:ccm" cannot list "secrets"',
        "kubectl --token-file /var/x",
        "flag --token is required",
        "design=5 assigned: 3 monkey: banana",
        "git@github.com:x/y.git",
        "use --service-account-credentials=true",
        "token=null&n=1 password: none, secret=false; {'token': None} x.token == None",
        '{"token":null,"secret":false}',
        "got sig=SIGTERM, sig: SIGHUP sig=15",
        "tokens: 5 max_tokens=4096, passwords: 0 secrets=2.5",
        "{Tokens:5 Region:y}",
        "<token/> <password></password> <secrets>\n  <name>x</name>\n</secrets>",
        "secrets:\n  - name: x\ntoken:\n  file: /x\npassword:\n  from:\n    env: X",
        "no token:\n  open /x: no such file",
        "compass=3 bypass: on, adminPassed=1 sassy=1",
        "kubernetes.io/hostname=worker.examplehostname1 in node.kubernetes.io/unreachable",
        "worker.examplehostname1 is ready, worker.example0host1234.internal too",
        "ubuntu-24.04 v1.33.0 registry.k8s.io/pause@sha256:0123456789abcdef0123456789abcdef",
        "ip-10-0-0-1.eu-west-1.compute.internal 0a1b2c.example",
        "m-nosecret: spec.secretRef is missing; name a Secret",
        "m-nosecret: Secret shop/gone does not exist; create it",
        "shop/m-nosecret: Failed: no quota",
        "machine m-nosecret: Running",
        "MachineClass shop/m-secret: VM (i-1) is gone",
        "machines pool-token: Pending: Ordered, pool-passwords: VM was refused",
        'err="m-mytoken: VM is gone"',
        '{"msg":"m-mytoken: VM is gone"}',
        "m-nosecret: hunter, next",
    ],
)
def test_what_is_harmless_stays(said: str) -> None:
    assert redact.words(said) == said
    assert redact.line(said.encode()) == said.encode()


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("m-mysecret: hunter2", f"m-mysecret: {M}"),
        ("m-mysecret: hunter2 is wrong", f"m-mysecret: {M} is wrong"),
        ("m-mysecret=hunter is wrong", f"m-mysecret={M} is wrong"),
        ('m-nosecret: "hunter" is wrong', f'm-nosecret: "{M}" is wrong'),
        ('"m-mysecret": hunter', f'"m-mysecret": {M}'),
        ("m-authorization: Bearer abcdef", f"m-authorization: Bearer {M}"),
        ("m-nosecret: password: abc", f"m-nosecret: password: {M}"),
        ("m-nosecret: wrong token: abc", f"m-nosecret: wrong token: {M}"),
        ("x-secret: hunter", f"x-secret: {M}"),
        ("SMTP-Password: hunter", f"SMTP-Password: {M}"),
        ("mail_password: hunter", f"mail_password: {M}"),
    ],
)
def test_a_secret_after_the_name_of_an_object_is_masked(said: str, written: str) -> None:
    assert redact.words(said) == written


def test_nearly_all_random_bootstrap_tokens_have_the_form() -> None:
    chance = random.Random(1)
    letters = string.ascii_lowercase + string.digits
    tokens = [
        f"{''.join(chance.choices(letters, k=6))}.{''.join(chance.choices(letters, k=16))}"
        for _ in range(2000)
    ]

    assert sum(redact.words(token) == M for token in tokens) > 1990


@pytest.mark.parametrize(
    ("names", "secret"),
    [
        ("token apiToken client_secret PASSWORD api-key", True),
        ("tokenFile region key_pair", False),
    ],
)
def test_names_tell_which_settings_are_secret(names: str, secret: bool) -> None:
    assert {redact.is_secret(name) for name in names.split()} == {secret}


def test_what_is_public_is_cut_after_its_secrets_are_gone() -> None:
    said = redact.public("é" * 505 + " password: abcdefghijklmnop " + "x" * 9000)

    assert len(said.encode()) <= redact.PUBLIC_BYTES
    assert said.endswith("...")
    assert "abc" not in said


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    "start",
    ["", "password='", "authorization: Digest ", "token: ", "<token>", "-----BEGIN PRIVATE "],
)
@pytest.mark.parametrize(
    "piece",
    [
        *("\\", "'", '"', "eyJ-", "://a:", "--a", "--token ", "token ", "a=b, ", "%25", "\\u0041"),
        *("s3", ",a", "&", "token>", "token: ", "token:", "m-token: a b ", "m-token", "m-token: a"),
        *("KEY-----", "-----BEGIN PRIVATE KEY-----", "a0.", "abcdef.", "Bearer ", "cookie=a; "),
    ],
)
def test_hostile_text_costs_linear_time(piece: str, start: str) -> None:
    def cost_s(size: int) -> float:
        text = (start + piece * (size // len(piece))).encode()
        before = time.process_time()
        redact.line(text)
        return time.process_time() - before

    cost_s(64)
    # Eight times the text in less than 24 times the time; quadratic would be 64.
    assert cost_s(1 << 15) < 24 * max(cost_s(1 << 12), 0.001)


def test_much_hostile_text_is_looked_through_in_seconds() -> None:
    before = time.process_time()

    redact.line(b"token='eyJ-://a:" * (1 << 12))

    assert time.process_time() - before < 10


@pytest.mark.parametrize("cut", [redact.words, redact.public])
@pytest.mark.parametrize("piece", ["token ", "://a@", "%41", "x"])
def test_of_long_text_only_the_beginning_is_looked_at(
    piece: str, cut: Callable[[str], str]
) -> None:
    before = time.process_time()

    said = cut(piece * (1 << 20))

    assert time.process_time() - before < 1
    assert len(said) <= redact.LONGEST
    assert said.endswith("...")


@pytest.mark.parametrize("secret", ["hunter2-" * 40, "hunter2-" * 400])
def test_half_a_secret_at_the_cut_is_left_out(secret: str) -> None:
    redact.know(secret)

    for whole in (1, 7, 100, len(secret) // 2, len(secret) - 2):
        assert "hunter" not in redact.words("x " * ((redact.LONGEST - whole) // 2) + secret)


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


def test_any_line_of_json_stays_json() -> None:
    redact.know("1234567")
    pieces = ["token", "cookie", "=", ":", " ", "'", '"', "\\", "--", "[", "{", "(", ",", "x", "@"]
    pieces += ["-----BEGIN PRIVATE KEY-----", "https://u:", "Bearer ", "Digest ", "}", "sig", "\n"]
    chance = random.Random(1)

    for _ in range(3000):
        texts = ["".join(chance.choices(pieces, k=chance.randint(1, 4))) for _ in range(5)]
        facts = {texts[0]: texts[1], "b": [texts[2], 1234567], "c": {texts[3]: 1}, "d": texts[4]}
        json.loads(redact.line(json.dumps(facts, separators=(",", ":")).encode()))


@pytest.mark.parametrize("between", ["\n", ":\n\n  \t"])
def test_a_secret_of_several_lines_is_known_behind_margins(between: str) -> None:
    secret = between.join(("first77-of-sixteen", "second88-of-sixteen"))
    redact.know(secret)
    rows = f"bad: {secret} end".split("\n")

    for margin in ("  | ", "    | ", "  + ", "\t"):
        for end in ("\n", "\\n"):
            said = redact.words((end + margin).join(rows))
            assert "second88" not in said
            assert said.endswith("end")
