"""A declared cloud config: read with every fault at once, and told to people."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
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
from ccm.base import files, redact
from ccm.cloud import config, settings
from ccm.cloud.settings import Setting


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


def test_every_type_is_read() -> None:
    assert read(GOOD) == Config(
        url="http://x",
        api_token="some-token",
        retries=5,
        share=1.5,
        verify=True,
        timeout=timedelta(seconds=90),
        zone=Zone.SOUTH,
        cache=Path("/var/cache/x"),
        pins=["first-pin", "second-pin"],
        ports=8,
        balancers=Balancers(size="large", private_networks=(IPv4Network("10.0.0.0/8"),)),
        images={"base": Image(name="debian", pin="third-pin")},
        extra={"a": [1]},
    )


@pytest.mark.parametrize("text", ["", "retries: null\nbalancers: ~\nimages:\n"])
def test_what_is_missing_is_its_default(text: str) -> None:
    found = read(f"url: http://x\napiToken: t\n{text}")

    assert found == Config(url="http://x", api_token="t")


def test_every_fault_comes_in_one_message() -> None:
    assert faults(
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
    ) == (
        "url is missing; it is required",
        "apiToken is missing, and so is tokenFile; one of the two is required",
        "retries is -1; it must be at least 0",
        "share is 0.25; it must be at least 0.5",
        "verify is 'maybe'; it must be true or false",
        "timeout is 5; it must be a duration above zero, such as 30s or 1m30s",
        "zone is 'east'; it must be one of north, south",
        "cache is of type int; it must be text in quotes",
        "pins is wrong, and not shown as it is a secret; it must be a list",
        "ports is '7'; it must be an even number",
        "balancers.privateNetworks[1] is 'here'; it must be what IPv4Network takes",
        "balancers.sizes is unknown; did you mean size? known are privateNetworks, size",
        "images.base.name is missing; it is required",
        "images.base.pin is of type int; it must be text in quotes",
        "images.other is 'debian'; it must be a mapping of names to values",
        f"timeuot is unknown; did you mean timeout? known are {KNOWN}",
    )


def test_a_rule_about_several_settings_is_the_structs_own() -> None:
    assert faults("url: http://x\napiToken: t\nverify: false") == (
        "retries and verify: false exclude each other",
    )


@pytest.mark.parametrize("value", ["soon", "[]", "{}", "true", "nan", "1e999", "'1_0'"])
def test_what_is_no_number_is_a_fault(value: str) -> None:
    (fault,) = faults(f"url: http://x\napiToken: t\nshare: {value}")

    assert fault.startswith("share is ")
    assert fault.endswith("; it must be a number")


def test_no_secret_is_shown_or_logged() -> None:
    found = read(GOOD)

    for secret in ("some-token", "first-pin", "second-pin", "third-pin"):
        assert secret not in redact.words(f"it is {secret}")
        assert secret not in repr(found)
    assert "url='http://x'" in repr(found)
    assert "Image(name='debian', pin=[redacted])" in repr(found)


def test_a_secret_of_the_wrong_kind_is_not_shown() -> None:
    told = " ".join(faults("url: http://x\napiToken: 8421709\npins: hunter-222"))

    assert "8421709" not in told
    assert "hunter-222" not in told


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("out-of-a-file\n")
    context = cloud.Context(config=f"url: http://x\ntokenFile: {file}".encode())

    assert context.settings(Config).api_token == "out-of-a-file"
    assert context.followed == {file: files.signature(file)}
    assert "out-of-a-file" not in redact.words("it is out-of-a-file")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("apiToken: t\ntokenFile: f", "apiToken is given beside tokenFile; one of the two is"),
        ("tokenFile: /no/such", "tokenFile: /no/such cannot be read: No such file"),
        ("tokenFile: 3", "tokenFile is of type int; it must be text in quotes"),
    ],
)
def test_a_secret_is_given_once_and_readable(text: str, fault: str) -> None:
    assert faults(f"url: http://x\n{text}")[0].startswith(fault)


class Sections(msgspec.Struct, rename="lower"):
    Acme: Image
    Limits: Balancers = Balancers()


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("YAML", "acme: {name: debian}"),
        ("YAML", '{"acme": {"name": "debian"}}'),
        ("JSON", '{"acme": {"name": "debian"}}'),
        ("TOML", '[acme]\nname = "debian"'),
        ("INI", "[acme]\nname = debian"),
    ],
)
def test_each_form_is_read(form: config.Form, text: str) -> None:
    found = cloud.Context(config=text.encode()).settings(Sections, form=form)

    assert found == Sections(Acme=Image(name="debian"))


def test_what_msgspec_has_and_a_file_has_not_is_a_mistake_of_the_author() -> None:
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
def test_no_value_ends_in_a_traceback(values: dict[str, object]) -> None:
    with contextlib.suppress(cloud.ConfigError):
        assert isinstance(read(msgspec.json.encode(values), "JSON"), Config)


def test_the_table_tells_what_is_declared() -> None:
    assert settings.table(Config) == [
        Setting(name="url", kind="text", required=True, help="Where the API is."),
        Setting(name="apiToken", kind="secret", help="For the API."),
        Setting(
            name="tokenFile",
            kind="text",
            help="A file that holds apiToken instead; followed when it changes.",
        ),
        Setting(name="retries", kind="whole number, at least 0", default="3", help="How often."),
        Setting(name="share", kind="number, at least 0.5", help="Of the load."),
        Setting(name="verify", kind="true or false", default="true"),
        Setting(name="timeout", kind="duration", default="1m0s"),
        Setting(name="zone", kind="north or south", default="north"),
        Setting(name="cache", kind="file"),
        Setting(name="pins", kind="secret", help="For nothing."),
        Setting(name="ports", kind="whole number", help="Two."),
        Setting(name="balancers.size", kind="large or small", default="small"),
        Setting(name="balancers.privateNetworks", kind="list of IPv4Network"),
        Setting(name="images.*.name", kind="text", required=True),
        Setting(name="images.*.pin", kind="secret", help="Opens it."),
        Setting(name="extra", kind="any"),
    ]


@pytest.mark.parametrize(
    ("declared", "kind", "default"),
    [
        (tuple[str, ...], "list of text", "a, b"),
        (dict[str, int], "names with whole number", ""),
    ],
)
def test_collections_are_told_in_words(
    declared: Callable[..., Any], kind: str, default: str
) -> None:
    value: Any = ("a", "b") if default else msgspec.field(default_factory=dict)
    made = msgspec.defstruct("Made", [("one", declared, value)])

    assert settings.table(made) == [Setting(name="one", kind=kind, default=default)]


class Named(cloud.Settings, frozen=True, kw_only=True, rename="upper"):
    """Settings by the names of variables."""

    key: Annotated[str, cloud.setting("It opens.", secret=True, file="KEY_FILE")]
    fast: bool = False
    count: int = 1
    zone: str = ""

    @classmethod
    def contradictions(cls, values: Mapping[str, Any]) -> Sequence[str]:
        return ["FAST has no ZONE"] if values["fast"] and values["zone"] else []


def test_settings_may_come_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("k\n")
    environ = {"KEY_FILE": str(file), "FAST": "T", "COUNT": "7", "ZONE": "", "PATH": "/bin"}
    given = cloud.Context(environ=environ)

    assert given.settings(Named, environment=True) == Named(key="k", fast=True, count=7)
    over = cloud.Context(environ=environ, config=b"COUNT: 8\nFAST: false")
    assert over.settings(Named, environment=True) == Named(key="k", fast=False, count=8)
    with pytest.raises(cloud.ConfigError, match="KEY is missing"):
        given.settings(Named)


def test_contradictions_are_told_with_all_other_faults() -> None:
    given = cloud.Context(environ={"FAST": "1", "COUNT": "x", "ZONE": "z"})

    with pytest.raises(cloud.ConfigError) as caught:
        given.settings(Named, environment=True)

    first, count, last = caught.value.faults
    assert first.startswith("KEY is missing")
    assert count.startswith("COUNT is 'x'")
    assert last == "FAST has no ZONE"


class Inner(cloud.Settings, frozen=True, kw_only=True):
    host: str
    port: int = 1


class Outer(cloud.Settings, frozen=True, kw_only=True):
    inner: Inner
    name: str


@pytest.mark.parametrize("text", ["", "inner: {}", "inner:"])
def test_of_a_section_that_is_missing_each_setting_is_named(text: str) -> None:
    with pytest.raises(cloud.ConfigError) as caught:
        cloud.Context(config=text.encode()).settings(Outer)

    assert [one.partition(" is")[0] for one in caught.value.faults] == ["inner.host", "name"]
