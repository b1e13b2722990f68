"""Configuration of providers: formats, declared settings, secrets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal

import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from ccm import cloud
from ccm.base import redact
from ccm.cloud import (
    Aborted,
    CloudError,
    ConfigError,
    Context,
    Fields,
    Unavailable,
    config,
    settings,
)
from ccm.cloud.settings import Setting
from ccm.testing import builders


class Zone(Enum):
    NORTH = "north"
    SOUTH = "south"


class Balancers(msgspec.Struct, frozen=True, rename="camel"):
    size: Literal["small", "large"] = "small"
    private_networks: tuple[IPv4Network, ...] = ()


class Image(cloud.Settings, frozen=True):
    name: str
    pin: Annotated[str, cloud.setting("Opens it.", secret=True)] = ""


def even(text: str) -> int:
    number = int(text)
    if number % 2:
        raise ValueError(text)
    return number


NO_PINS: Any = msgspec.field(default_factory=list)
NO_IMAGES: Any = msgspec.field(default_factory=dict)
EVEN = cloud.setting("Two.", parse=even, expects="be an even number")


class Config(cloud.Settings, frozen=True, kw_only=True, rename="camel"):
    url: Annotated[str, cloud.setting("Where the API is.")]
    api_token: Annotated[str, cloud.setting("For the API.", file="tokenFile")]
    retries: Annotated[int, cloud.setting("How often.", least=0)] = 3
    share: Annotated[float, cloud.setting("Of the load.", least=0.5)] | None = None
    verify: bool = True
    timeout: timedelta = timedelta(minutes=1)
    zone: Zone = Zone.NORTH
    cache: Path | None = None
    pins: Annotated[list[str], cloud.setting("For nothing.", secret=True)] = NO_PINS
    ports: Annotated[int, EVEN] | None = None
    balancers: Balancers = Balancers()
    images: dict[str, Image] = NO_IMAGES
    extra: Any = None

    def __post_init__(self) -> None:
        if self.retries and not self.verify:
            raise ValueError("retries and verify: false exclude each other")


GOOD = b"""
url: http://x
apiToken: some-token
retries: "5"
share: 1.5
verify: "TRUE"
timeout: 1m30s
zone: south
cache: /var/cache/x
pins: [first-pin, second-pin]
ports: "8"
balancers: {size: large, privateNetworks: [10.0.0.0/8]}
images: {base: {name: debian, pin: third-pin}}
extra: {a: [1]}
"""


KNOWN = (
    "apiToken, balancers, cache, extra, images, pins, ports, retries, share, timeout, tokenFile, "
    "url, verify, zone"
)


def read(text: bytes | str, form: config.Form = "YAML") -> Config:
    raw = text if isinstance(text, bytes) else text.encode()
    return cloud.Context(config=raw).settings(Config, form=form)


def faults(text: bytes | str) -> tuple[str, ...]:
    with pytest.raises(cloud.ConfigError) as caught:
        read(text)
    return caught.value.faults


def test_all_invalid_settings_are_reported_in_one_error() -> None:
    told = faults(
        """
        url: ""
        retries: -1
        share: 0.25
        verify: maybe
        timeout: 5
        zone: east
        cache: 3
        pins: first-pin
        ports: "7"
        balancers: {sizes: large, privateNetworks: [10.0.0.0/8, here]}
        images: {base: {pin: 9876543}, other: debian}
        timeuot: 1s
        """
    )

    names = "url apiToken retries share verify timeout zone cache pins ports"
    sections = "balancers.privateNetworks[1] balancers.sizes images.base.name images.base.pin"
    assert [fault.split()[0] for fault in told] == [
        *(names.split()),
        *(sections.split()),
        "images.other",
        "timeuot",
    ]
    assert "did you mean size? known are privateNetworks, size" in told[11]
    assert told[-1].endswith(f"did you mean timeout? known are {KNOWN}")


def test_rule_about_several_settings_is_checked_by_the_struct() -> None:
    assert faults("url: http://x\napiToken: t\nverify: false") == (
        "retries and verify: false exclude each other",
    )


def test_secret_settings_are_masked_in_logs_and_repr() -> None:
    found = read(GOOD)

    for secret in ("some-token", "first-pin", "second-pin", "third-pin"):
        assert secret not in redact.mask_text(f"it is {secret}")
        assert secret not in repr(found)
    assert "url='http://x'" in repr(found)
    assert "Image(name='debian', pin=[redacted])" in repr(found)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("apiToken: t\ntokenFile: f", "apiToken conflicts with tokenFile; set only one of them"),
        ("tokenFile: /no/such", "tokenFile: /no/such cannot be read: No such file"),
        ("tokenFile: 3", "tokenFile is of type int; it must be text in quotes"),
    ],
)
def test_secret_must_be_given_once_and_be_readable(text: str, fault: str) -> None:
    assert faults(f"url: http://x\n{text}")[0].startswith(fault)


def test_setting_of_an_unsupported_type_is_a_programming_error() -> None:
    class Odd(msgspec.Struct):
        data: bytes

    with pytest.raises(TypeError, match="a setting cannot be of type"):
        cloud.Context(config=b"data: x").settings(Odd)


@hypothesis.settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from([one.name for one in settings.table(Config)] + ["images", "balancers"]),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
            lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(max_size=4), inner)),
            max_leaves=4,
        ),
    )
)
def test_arbitrary_values_raise_only_config_errors(values: dict[str, object]) -> None:
    with contextlib.suppress(cloud.ConfigError):
        assert isinstance(read(msgspec.json.encode(values), "JSON"), Config)


@pytest.mark.parametrize(
    ("declared", "kind", "default"),
    [(tuple[str, ...], "list of text", "a, b"), (dict[str, int], "names with whole number", "")],
)
def test_collection_types_are_described_in_words(
    declared: Callable[..., Any], kind: str, default: str
) -> None:
    value: Any = ("a", "b") if default else msgspec.field(default_factory=dict)
    made = msgspec.defstruct("Made", [("one", declared, value)])

    assert settings.table(made) == [Setting(name="one", kind=kind, default=default)]


class Inner(cloud.Settings, frozen=True, kw_only=True):
    host: str
    port: int = 1


class Outer(cloud.Settings, frozen=True, kw_only=True):
    inner: Inner
    name: str


@pytest.mark.parametrize("text", ["", "inner: {}", "inner:"])
def test_missing_section_reports_each_required_setting(text: str) -> None:
    with pytest.raises(cloud.ConfigError) as caught:
        cloud.Context(config=text.encode()).settings(Outer)

    assert [one.partition(" is")[0] for one in caught.value.faults] == ["inner.host", "name"]


SECOND = timedelta(seconds=1)

FORMATS: dict[str, Callable[[Context], Any]] = {
    "YAML": Context.yaml,
    "JSON": Context.json,
    "TOML": Context.toml,
    "INI": Context.ini,
}
IN_EACH_FORM = {
    "YAML": b"url: http://x\nretries: 3\nverify: false\ntimeout: 30s\n",
    "JSON": b'{"url": "http://x", "retries": 3, "verify": false, "timeout": "30s"}',
    "TOML": b'url = "http://x"\nretries = 3\nverify = false\ntimeout = "30s"\n',
    "INI": b"[acme]\nurl = http://x\nretries = 3\nverify = false\ntimeout = 30s\n",
}


def parsed(form: str, config: bytes) -> Fields:
    context = Context(config=config)
    found: Fields = context.ini()["acme"] if form == "INI" else FORMATS[form](context)
    return found


@pytest.mark.parametrize("form", FORMATS)
def test_yaml_json_toml_and_ini_give_the_same_values(form: str) -> None:
    fields = parsed(form, IN_EACH_FORM[form])

    assert fields.text("url", required=True) == "http://x"
    assert fields.integer("retries", 1) == 3
    assert fields.boolean("verify", True) is False
    assert fields.duration("timeout", SECOND) == timedelta(seconds=30)
    fields.done()


BAD = [
    ("YAML", b"a: [1, 2", "line 1"),
    ("YAML", b"a: b\n\tc: d\n", "line 2, column 1: found character '\\t' that cannot start any"),
    ("YAML", b"a: b: c\n", "line 1, column 5: mapping values are not allowed here"),
    ("YAML", b"a: 1\nb: {c: 1, c: 2}\n", "line 2: duplicate name c"),
    ("YAML", b"a: x\x01", "character 5: special characters are not allowed"),
    ("YAML", b"\xff\xfe\xfa", None),
    ("YAML", b"when: 2001-99-99", "unreadable text, or an invalid date or number"),
    ("YAML", b"n: 0x_", None),
    ("YAML", b"a: !secret b", "line 1"),
    ("YAML", b"? [a]\n: b", None),
    ("YAML", b"[" * 500, None),
    ("JSON", b"{", None),
    ("JSON", b"{'a': 1}", "byte 1"),
    ("JSON", b'{"a": "\xff"}', None),
    ("JSON", b'{"a":' * 20000, None),
    ("TOML", b"a = \n", "line 1"),
    ("TOML", b"a = 1\na = 2\n", "line 2"),
    ("TOML", b'a = "\xff"', "byte 5 is not UTF-8"),
    ("TOML", b"a = " + b"[" * 20000, None),
    ("INI", b"a = 1\n", "line 1"),
    ("INI", b"[acme]\nhello\n", "line 2"),
    ("INI", b"[acme]\na = 1\na = 2\n", "line 3"),
    ("YAML", b"a: 0x" + b"f" * 5000, "line 1, column 4"),
    ("YAML", b"a: " + b"9" * 5000, None),
    ("INI", b"[acme]\n\xff = 1\n", "byte 7 is not UTF-8"),
]


@pytest.mark.parametrize(("form", "config", "place"), BAD, ids=lambda each: str(each)[:20])
def test_syntax_error_names_its_position(form: str, config: bytes, place: str | None) -> None:
    context = Context(config=config, source="/etc/acme.conf")

    with pytest.raises(ConfigError) as caught:
        FORMATS[form](context)

    text = str(caught.value)
    assert text.startswith(f"/etc/acme.conf is not valid {form}: ")
    assert (place or "") in text
    assert "\n" not in text


@pytest.mark.parametrize("form", FORMATS)
@given(config=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_arbitrary_bytes_raise_only_config_errors(form: str, config: bytes) -> None:
    try:
        found = FORMATS[form](Context(config=config))
    except ConfigError:
        return
    sections = found.values() if isinstance(found, dict) else [found]
    for fields in sections:
        fields.text("a")
        fields.integer("b", 1)
        fields.boolean("c", True)
        fields.duration("d", SECOND)


def test_values_read_as_secrets_are_masked_in_logs() -> None:
    fields = Fields({"apiToken": "qwertz-1", "pin": "qwertz-2", "region": "qwertz-3"})
    values = [fields.text("apiToken"), fields.secret("pin"), fields.text("region")]

    assert values == ["qwertz-1", "qwertz-2", "qwertz-3"]
    assert [redact.mask_text(value) == value for value in values] == [False, False, True]


def test_too_long_secret_setting_is_refused() -> None:
    fields = Fields({"apiToken": "x" * 300_000})
    fields.text("apiToken")

    with pytest.raises(ConfigError, match=r"^apiToken is invalid .* 65536 bytes, .* has 300000$"):
        fields.done()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b" ", "is empty"),
        (b"\xff", "not text in UTF-8"),
        (b"x" * 300_000, "token cannot be read: the file has more than 65536 bytes"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_unusable_secret_file_is_watched_too(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    context = Context()

    with pytest.raises(ConfigError, match=words):
        context.secret_file(file)

    assert set(context.followed) == {file}


class Refused(Exception):
    """Error of an API client: an own class with the HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"refused ({status})")
        self.status = status


class Api:
    """API server with some objects; `clients` counts the created clients."""

    def __init__(self, **objects: object) -> None:
        self.objects = {path.replace("__", "/"): body for path, body in objects.items()}
        self.clients: list[str] = []

    def client(self, name: str) -> Api:
        self.clients.append(name)
        return self

    async def request(self, method: str, path: str, **_: object) -> bytes:
        found = self.objects.get(path.removeprefix("/api/v1/"), 404)
        if method != "GET" or isinstance(found, int):
            raise Refused(found if isinstance(found, int) else 405)
        return msgspec.json.encode(found)


@pytest.mark.parametrize(
    ("clients", "error"),
    [
        (None, Unavailable),
        (Api(), Aborted),
        (Api(nodes__n=500), Unavailable),
        (Api(nodes__n={"metadata": {"uid": "another"}}), Aborted),
        (Api(nodes__n=[]), Unavailable),
    ],
    ids=["no cluster", "gone", "trouble", "another one", "no object"],
)
async def test_unreadable_cluster_object_is_never_reported_as_not_found(
    clients: Api | None, error: type[CloudError]
) -> None:
    with pytest.raises(error):
        await Context(clients=clients).whole(builders.node("n"))


@pytest.mark.parametrize("form", ["YAML", "JSON"])
@pytest.mark.parametrize("config", [b"[1]", b"3", b'"x"'])
def test_cloud_config_that_is_no_mapping_is_refused(form: str, config: bytes) -> None:
    with pytest.raises(ConfigError, match="cloud config must be a mapping of names to values"):
        FORMATS[form](Context(config=config))


@pytest.mark.parametrize(
    ("form", "config"),
    [
        ("YAML", b"token: hunter2: oops\n"),
        ("YAML", b"token: *hunter2\n"),
        ("YAML", b"token: !hunter2 x\n"),
        ("YAML", b'token: "hunter2\n'),
        ("JSON", b'{"token": hunter2}'),
        ("TOML", b"token = hunter2\n"),
        ("INI", b"token = hunter2\n"),
        ("INI", b"[acme]\ntoken hunter2\n"),
        ("INI", b"[acme\nhunter2\n"),
    ],
)
def test_syntax_error_does_not_show_secrets(form: str, config: bytes) -> None:
    with pytest.raises(ConfigError) as caught:
        FORMATS[form](Context(config=config))

    assert "hunter2" not in str(caught.value)


WRONG: list[tuple[Any, object, str, list[object]]] = [
    (Fields.integer, 7, "a whole number", ["", "--3", "3.5", "²", "٣", "1_000", 3.0, True, [1]]),
    (Fields.integer, 7, "a whole number", ["9" * 5000]),
    (Fields.boolean, True, "true or false", ["yes", "1", 1, 0, ""]),
    (Fields.duration, SECOND, "a duration above zero", ["0", "0s", "-1s", "30", 30, "", True]),
    (Fields.duration, SECOND, "a duration above zero", ["1e3s", "9" * 400 + "h"]),
]


@pytest.mark.parametrize(
    ("read", "default", "wanted", "value"),
    [(*one, value) for *one, values in WRONG for value in values],
    ids=lambda each: getattr(each, "__name__", str(each)[:20]),
)
def test_value_of_a_wrong_form_is_reported_and_replaced_by_the_default(
    read: Any, default: object, wanted: str, value: object
) -> None:
    fields = Fields({"n": value})

    assert read(fields, "n", default) == default
    with pytest.raises(ConfigError, match=f"must be {wanted}"):
        fields.done()


def test_secret_of_a_wrong_type_is_not_shown() -> None:
    told = " ".join(faults("url: http://x\napiToken: 8421709\npins: hunter-222"))

    assert "8421709" not in told
    assert "hunter-222" not in told
