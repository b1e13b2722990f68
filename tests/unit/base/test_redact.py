"""What is taken out of log lines, and what is left."""

from __future__ import annotations

import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from ccm.base import redact

M = redact.MASK


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have made secrets known."""
    monkeypatch.setattr(redact, "_lasting", set())
    monkeypatch.setattr(redact, "_transient", deque(maxlen=redact.TRANSIENT))
    monkeypatch.setattr(redact, "_known", None)


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
        ("X-Auth-Token: abc", f"X-Auth-Token: {M}"),
        ("x-api-key: abc", f"x-api-key: {M}"),
        ("password: abc, next", f"password: {M}, next"),
        ("password = abc", f"password = {M}"),
        ("token='a\"b'", f"token='{M}'"),
        ("run --token abc now", f"run --token {M} now"),
        ("['--password', 'abc']", f"['--password', '{M}']"),
        ("pwd=a,b&&c, user=d", f"pwd={M}, user=d"),
        ("https://h/x?sig=abc&n=1", f"https://h/x?sig={M}&n=1"),
        ("X-Amz-Signature=abc", f"X-Amz-Signature={M}"),
        ("to=https%3A%2F%2Fh%3Ftoken%3Dabc%26n%3D1", f"to=https%3A%2F%2Fh%3Ftoken%3D{M}%26n%3D1"),
        ("Cookie: a=b; c=d", f"Cookie: {M}"),
        ("password=none-of-it secret=null,1", f"password={M} secret={M}"),
        ("Authorization: Token abc", f"Authorization: Token {M}"),
        ("Authorization: Odd abc", f"Authorization: {M}"),
        (
            "Authorization: AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=h;d, Signature=c end",
            f"Authorization: AWS4-HMAC-SHA256 {M} end",
        ),
        (
            'Authorization: Digest username="a", realm="b c", response="d" end',
            f"Authorization: Digest {M} end",
        ),
        ("https://me:p/w@host/path", f"https://{M}@host/path"),
        ("https://me:p@w@host/path?m=a@b", f"https://{M}@host/path?m=a@b"),
        ("{b'X-Auth-Token': b'abc'}", f"{{b'X-Auth-Token': b'{M}'}}"),
        ("[(b'x-auth-token', b'abc')]", f"[(b'x-auth-token', b'{M}')]"),
        ("map[X-Auth-Token:[abc] Accept:[*]]", f"map[X-Auth-Token:[{M}] Accept:[*]]"),
        ("<password>abc</password>", f"<password>{M}</password>"),
        ("<a:adminPass t='x'> b c </a:adminPass>", f"<a:adminPass t='x'>{M}</a:adminPass>"),
        ("<Secret><![CDATA[a]]></Secret>", f"<Secret><![CDATA[{M}</Secret>"),
        (
            "\\u003ctoken\\u003eabc\\u003c/token\\u003e",
            f"\\u003ctoken\\u003e{M}\\u003c/token\\u003e",
        ),
        ("&lt;token&gt;abc&lt;/token&gt;", f"&lt;token&gt;{M}&lt;/token&gt;"),
        ('{Password:"a b" Region:y}', f'{{Password:"{M}" Region:y}}'),
        ("&{Token:abc Region:y}", f"&{{Token:{M} Region:y}}"),
        ("password:\n  abc\nn: 1", f"password:\n  {M}\nn: 1"),
        ('"token":\r\n    "abc"', f'"token":\r\n    {M}'),
        ("password: |\n  a b\n\n  c\nn: 1", f"password: |\n  {M}\nn: 1"),
        ("err='token: >-\\n  a\\n  b\\nn: 1'", f"err='token: >-\\n  {M}\\nn: 1'"),
        ("adminPass=abc db_pass: abc", f"adminPass={M} db_pass: {M}"),
        ("secret_id: abc secretId=abc", f"secret_id: {M} secretId={M}"),
        ("client_secret=abc&n=1", f"client_secret={M}&n=1"),
        (
            "private_key: |\n  -----BEGIN PRIVATE KEY-----\n  abc\n  -----END KEY-----\nn: 1",
            f"private_key: |\n  {M}\nn: 1",
        ),
        ("https://h/x?sv=1&sas=abc&sig=a%2Bc%3D&n=1", f"https://h/x?sv=1&sas={M}&sig={M}&n=1"),
        ("pwd=12345 pwd=/abc+def= token=15", f"pwd={M} pwd={M} token={M}"),
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
        "pwd=/opt/x pwd: /var/lib/x.y, PWD=/root",
        '{"pwd":"/opt/x","sig":"SIGTERM"}',
        "tokens: 5 max_tokens=4096, passwords: 0 secrets=2.5",
        "{Tokens:5 Region:y}",
        "<token/> <password></password> <secrets>\n  <name>x</name>\n</secrets>",
        "secrets:\n  - name: x\ntoken:\n  file: /x\npassword:\n  from:\n    env: X",
        "no token:\n  open /x: no such file",
        "compass=3 bypass: on, adminPassed=1 sassy=1",
    ],
)
def test_what_is_harmless_stays(said: str) -> None:
    assert redact.words(said) == said


@pytest.mark.parametrize(
    "said",
    [
        "m-nosecret: spec.secretRef is missing; name a Secret",
        "m-nosecret: Secret shop/gone does not exist; create it",
        "shop/m-nosecret: Failed: no quota",
        "machine m-nosecret: Running",
        "MachineClass shop/m-secret: VM (i-1) is gone",
        "machines pool-token: Pending: Ordered, pool-passwords: VM was refused",
        'err="m-mytoken: VM is gone"',
        '{"msg":"m-mytoken: VM is gone"}',
    ],
)
def test_a_sentence_about_an_object_stays_whatever_the_object_is_called(said: str) -> None:
    assert redact.words(said) == said
    assert redact.line(said.encode()) == said.encode()


@pytest.mark.parametrize(
    ("said", "written"),
    [
        # The word alone, and fields that hold a secret: whatever their value looks like.
        ("password: correct horse", f"password: {M} horse"),
        ("secret: Stale: x", f"secret: {M} x"),
        ("smtp-password: correct horse", f"smtp-password: {M} horse"),
        ("dbpassword: correct horse", f"dbpassword: {M} horse"),
        ("clientsecret: correct horse", f"clientsecret: {M} horse"),
        ("x-vault-token: correct horse", f"x-vault-token: {M} horse"),
        ("spec.token: correct horse", f"spec.token: {M} horse"),
        ("mail_password: correct horse", f"mail_password: {M} horse"),
        ("mailPassword: correct horse", f"mailPassword: {M} horse"),
        ("PGPASSWORD: correct horse", f"PGPASSWORD: {M} horse"),
        ("/run/token: correct horse", f"/run/token: {M} horse"),
        # An object's name, and no sentence after it.
        ("m-mysecret: hunter", f"m-mysecret: {M}"),
        ("m-mysecret: hunter2 is wrong", f"m-mysecret: {M} is wrong"),
        ("m-mysecret: hunter user: x", f"m-mysecret: {M} user: x"),
        ("m-mysecret: hunter, next", f"m-mysecret: {M}, next"),
        ("m-mysecret=hunter is wrong", f"m-mysecret={M} is wrong"),
        ('m-nosecret: "hunter" is wrong', f'm-nosecret: "{M}" is wrong'),
        ('secret: "hunter is wrong"', f'secret: "{M}"'),
        ('"m-mysecret": hunter is wrong', f'"m-mysecret": {M} is wrong'),
        ("m-nosecret: hunter2", f"m-nosecret: {M}"),
        ("m-authorization: Bearer abcdef", f"m-authorization: Bearer {M}"),
        # The sentence names a secret.
        ("m-nosecret: password: abc", f"m-nosecret: password: {M}"),
        ("m-nosecret: wrong token: abc", f"m-nosecret: wrong token: {M}"),
        ("m-nosecret: token=abc", f"m-nosecret: {M}"),
    ],
)
def test_a_value_after_the_name_of_a_field_or_an_object_is_masked(said: str, written: str) -> None:
    assert redact.words(said) == written


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


def test_what_is_public_is_cut_after_its_secrets_are_gone() -> None:
    said = redact.public("é" * 505 + " password: abcdefghijklmnop " + "x" * 9000)

    assert len(said.encode()) <= redact.PUBLIC_BYTES
    assert said.endswith("...")
    assert "abc" not in said


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    "start", ["", "password='", "authorization: Digest ", "token: |\n ", "<token a", "<token>"]
)
@pytest.mark.parametrize(
    "piece",
    [
        *("\\", "'", '"', "eyJ-", "://a:", "--a", "token ", "a=b, ", "%25", "\\u0041", "s3", ",a"),
        *(
            "&",
            "token>",
            "token x>",
            "\\u003ctoken>",
            "token:\n ",
            "token: |\n a\n",
            "\n ",
            "pwd=/",
            "m-token: a b ",
            "m-token",
        ),
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

    for whole in (1, 7, 100, len(secret) - 1):
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


@pytest.mark.parametrize("secret", ["first77\nsecond88", "first77:\n\n  \tsecond88\n"])
def test_a_secret_of_several_lines_is_known_behind_margins(secret: str) -> None:
    redact.know(secret)
    rows = f"bad: {secret} end".split("\n")

    for margin in ("  | ", "    | ", "  + ", "\t"):
        for end in ("\n", "\\n"):
            said = redact.words((end + margin).join(rows))
            assert "second88" not in said
            assert said.endswith("end")


def test_a_secret_of_spaces_and_line_breaks_costs_linear_time() -> None:
    redact.know("first77" + "\n  " * 20 + "x")
    before = time.process_time()

    redact.words(("first77" + ("\n" + " " * 39) * 40) * 10)

    assert time.process_time() - before < 1
