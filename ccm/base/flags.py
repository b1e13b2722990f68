"""Command line flags: value kinds, declarations, common checks and feature gates.

A flag is a field of a frozen dataclass, declared through a `FlagSection`. The declaration has all
properties of the flag: kind, default, meaning, unit, checks beyond the kind, and path in the
configuration file. Booleans, durations and lists use Go's syntax; numbers are decimal.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

from ccm.base import parsing
from ccm.base.parsing import parse_digits

PROVIDERS = "ccm.providers"
"""Entry-point group of the providers; here, because the import of `ccm.cloud.registry` is slow."""

T = TypeVar("T")
Address = IPv4Address | IPv6Address

# A leading zero is rejected: Go reads such a number as octal, and decimal would be another number.
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,18})")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_QUANTITY = re.compile(r"([0-9]{1,18})(Ki|Mi|Gi|k|M|G|)")
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagKind(Generic[T]):
    """Kind of flag value.

    Attributes:
        word: name of the kind in help, such as `duration`.
        expected: description of a valid value, to complete the sentence "it takes ...".
        parse: converts text to a value; raises ValueError for invalid text.
        write: converts a value to the text that `parse` accepts, but puts lists into brackets.
        bare_value: text of the value if the flag is given without a value. A flag of such a kind
            never takes the next word as its value. None = a value is required.
        merge: combines the values of repeated flags; None = the last value wins.
    """

    word: str
    expected: str
    parse: Callable[[str], T]
    write: Callable[[T], str]
    bare_value: str | None = None
    merge: Callable[[T, T], T] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCertificate:
    """Certificate for certain host names.

    Attributes:
        cert_file: path of the PEM chain.
        key_file: path of the PEM key.
        names: host names to serve, `*.` prefixes allowed; empty = the names in the certificate.
    """

    cert_file: str
    key_file: str
    names: tuple[str, ...] = ()


def parse_bool(text: str) -> bool:
    """Parse one of Go's words for true and false; raise ValueError for any other."""
    value = parsing.parse_bool(text)
    if value is None:
        raise ValueError(text)
    return value


def parse_list(text: str) -> tuple[str, ...]:
    """Parse a comma separated list; empty text is an empty list."""
    # Quotes are rejected: Go parses them as CSV does, which would result in other items.
    if any(mark in text for mark in '"\r\n'):
        raise ValueError(text)
    return tuple(text.split(",")) if text else ()


def parse_quantity(text: str) -> int:
    """Parse a size such as `64Ki`, `10M` or `2000`."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _FACTORS[match[2]]


def parse_gates(text: str) -> Mapping[str, bool]:
    """Parse `A=true,B=false`; spaces around names and values are ignored."""
    settings = {}
    for pair in filter(None, text.split(",")):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(pair)
        settings[name.strip()] = parse_bool(value.strip())
    return MappingProxyType(settings)


def parse_levels(text: str) -> tuple[tuple[str, int], ...]:
    """Parse `pattern=N,...` with N above 0: a log level for each matching source file."""
    levels = []
    for pair in filter(None, text.split(",")):
        pattern, equals, level = pair.partition("=")
        number = parse_digits(level)
        if not equals or not pattern or not number:
            raise ValueError(pair)
        levels.append((pattern, number))
    return tuple(levels)


def parse_named_certificate(text: str) -> tuple[NamedCertificate, ...]:
    """Parse `cert,key` or `cert,key:name,name`; each occurrence of the flag has one certificate."""
    files, colon, names = text.partition(":")
    paths = tuple(path.strip() for path in files.split(","))
    hosts = tuple(name.strip() for name in names.split(",")) if colon else ()
    if len(paths) != 2 or not all(paths) or not all(hosts):
        raise ValueError(text)
    return (NamedCertificate(cert_file=paths[0], key_file=paths[1], names=hosts),)


def parse_version(text: str) -> str:
    """Parse the value of `--version`: `true`, `false`, `raw` or a version such as `v1.2.3`."""
    if text == "raw" or re.fullmatch(r"v[0-9]+\.[0-9]+\.[0-9]+(?:[-+][0-9A-Za-z.+-]+)?", text):
        return text
    return write_bool(parse_bool(text))


def write_bool(value: bool) -> str:
    """Return `true` or `false`."""
    return "true" if value else "false"


def _write_list(value: tuple[object, ...]) -> str:
    return f"[{','.join(map(str, value))}]"


def _int_parser(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if _INTEGER.fullmatch(text) else low - 1
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def _parse_float(text: str) -> float:
    if not _FLOAT.fullmatch(text):
        raise ValueError(text)
    return float(text)


def _parse_duration(text: str) -> timedelta:
    try:
        return parsing.parse_duration(text)
    except OverflowError as error:
        raise ValueError(text) from error


def _parse_address(text: str) -> Address:
    if "%" in text:
        raise ValueError(text)
    return ip_address(text.strip())


def _write_certificate(value: NamedCertificate) -> str:
    names = f":{','.join(value.names)}" if value.names else ""
    return f"{value.cert_file},{value.key_file}{names}"


_INT32 = _int_parser(-(2**31), 2**31 - 1)

BOOL = FlagKind(
    word="bool", expected="true or false", parse=parse_bool, write=write_bool, bare_value="true"
)
STRING = FlagKind(word="string", expected="any text", parse=str, write=str)
INT = FlagKind(
    word="int", expected="a whole number", parse=_int_parser(-(2**63), 2**63 - 1), write=str
)
INT32 = FlagKind(
    word="int32", expected="a whole number from -2147483648 to 2147483647", parse=_INT32, write=str
)
LIMIT: FlagKind[int | None] = FlagKind(
    word="auto or int32",
    expected="auto, or a whole number from -2147483648 to 2147483647",
    parse=lambda text: None if text == "auto" else _INT32(text),
    write=lambda value: "auto" if value is None else str(value),
)
LEVEL = FlagKind(
    word="level",
    expected="a whole number from 0 to 2147483647",
    parse=_int_parser(0, 2**31 - 1),
    write=str,
)
FLOAT = FlagKind(
    word="float",
    expected="a number such as 20 or 0.5",
    parse=_parse_float,
    write=lambda value: repr(value).removesuffix(".0"),
)
DURATION = FlagKind(
    word="duration",
    expected="a duration such as 300ms, 10s or 1h30m",
    parse=_parse_duration,
    write=parsing.format_duration,
)
ADDRESS: FlagKind[Address] = FlagKind(
    word="ip", expected="an IPv4 or IPv6 address", parse=_parse_address, write=str
)
STRINGS = FlagKind(
    word="strings",
    expected="a comma separated list without quotes",
    parse=parse_list,
    write=_write_list,
    merge=lambda earlier, later: earlier + later,
)
NUMBERS = FlagKind(
    word="int32s",
    expected="whole numbers separated by commas",
    parse=lambda text: tuple(map(_INT32, text.split(","))) if text else (),
    write=_write_list,
    merge=lambda earlier, later: earlier + later,
)
GATES = FlagKind(
    word="Name=bool,...",
    expected="pairs such as Name=true,Other=false",
    parse=parse_gates,
    write=lambda value: ",".join(f"{name}={write_bool(value[name])}" for name in sorted(value)),
    merge=lambda earlier, later: MappingProxyType({**earlier, **later}),
)
LEVELS = FlagKind(
    word="pattern=N,...",
    expected="pairs such as node*=4 with a level above 0",
    parse=parse_levels,
    write=lambda value: ",".join(f"{pattern}={level}" for pattern, level in value),
)
QUANTITY = FlagKind(
    word="quantity", expected="a size such as 64Ki or 1M", parse=parse_quantity, write=str
)
CERTIFICATES = FlagKind(
    word="cert,key[:names]",
    expected="a certificate file and a key file, optionally with host names: a.crt,a.key:a.example",
    parse=parse_named_certificate,
    write=lambda value: f"[{';'.join(map(_write_certificate, value))}]",
    merge=lambda earlier, later: earlier + later,
)
VERSION = FlagKind(
    word="version",
    expected="true, false, raw or a version such as v1.2.3",
    parse=parse_version,
    write=str,
    bare_value="true",
)

Check = Callable[[T], str]
"""Function that returns the requirement that a value violates; empty = the value is valid.

The text follows the value in a message, such as "must be 1 or more".
"""

FlagViolation = tuple[str, str]
"""Name of a flag, and the requirement that its value violates."""

_DEFAULT_KINDS: Mapping[type, FlagKind[Any]] = {
    bool: BOOL,
    float: FLOAT,
    int: INT32,
    str: STRING,
    timedelta: DURATION,
    tuple: STRINGS,
}


@dataclass(frozen=True, slots=True)
class FlagSection:
    """Titled group of flags; `flag` declares a flag of the group.

    Attributes:
        title: heading in help.
        ours: whether the Go cloud-controller-manager lacks these flags.
    """

    title: str
    ours: bool = False

    def flag(
        self,
        default: T,
        text: str,
        *,
        kind: FlagKind[T] | None = None,
        check: Check[T] | None = None,
        **more: str,
    ) -> T:
        """Declare a flag as the default of a dataclass field.

        The flag has the name of the field, with `-` for `_` and without trailing underscores.
        `kind` defaults to the entry for the type of `default` in `_DEFAULT_KINDS`. `more` takes
        the `unit`, `path`, `short`, `deprecated` and `former_name` of `Flag`.
        """
        kind = kind or _DEFAULT_KINDS[type(default)]
        facts = {"kind": kind, "section": self, "text": text, "check": check, **more}
        return field(default_factory=lambda: default, metadata={"flag": facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Declaration of a flag.

    Attributes:
        name: name without leading dashes.
        section: group of the flag in help.
        kind: kind of its value.
        default: value when the flag is not set.
        text: meaning in one or two sentences; states what zero or empty means.
        unit: unit of a bare number; empty where the kind implies it.
        check: check of a single value; None = every value of the kind is valid.
        path: field of the configuration file that also sets the value; empty = none.
        short: letter for `-x`; empty = none.
        deprecated: advice to users of a deprecated flag; help omits the flag. Empty = not
            deprecated.
        former_name: deprecated alias, kept for one release; empty = none.
    """

    name: str
    section: FlagSection
    kind: FlagKind[Any]
    default: Any
    text: str
    unit: str = ""
    check: Check[Any] | None = None
    path: str = ""
    short: str = ""
    deprecated: str = ""
    former_name: str = ""

    def violation(self, value: Any) -> str:
        """Return the requirement that a value violates; empty = the value is valid."""
        return self.check(value) if self.check is not None else ""

    def error_message(self, value: Any, right: str) -> str:
        """Return the error message for an invalid value; `right` is the violated requirement."""
        return f"--{self.name}={self.kind.write(value)}: {right}"


def flags_of(declared: type) -> dict[str, Flag]:
    """Return all flags that a dataclass declares or inherits, by name and sorted."""
    fields = (entry for entry in dataclasses.fields(declared) if "flag" in entry.metadata)
    flags = (
        Flag(
            name=entry.name.rstrip("_").replace("_", "-"),
            default=entry.default_factory(),  # type: ignore[operator]
            **entry.metadata["flag"],
        )
        for entry in fields
    )
    return {flag.name: flag for flag in sorted(flags, key=lambda flag: flag.name)}


def aliases(flags: Mapping[str, Flag]) -> dict[str, Flag]:
    """Return the deprecated aliases of flags, by former name."""
    return {
        flag.former_name: dataclasses.replace(
            flag,
            name=flag.former_name,
            former_name="",
            text=f"DEPRECATED: use --{flag.name}.",
            deprecated=f"use --{flag.name}",
        )
        for flag in flags.values()
        if flag.former_name
    }


def resolve_aliases(
    flags: Mapping[str, Flag], values: dict[str, Any]
) -> tuple[frozenset[str], list[FlagViolation]]:
    """Move the values of aliases to their flags, in place.

    Returns:
        The aliases that have a value, and a violation for each alias that contradicts its flag.
    """
    used, violations = set(), []
    for name, flag in flags.items():
        if (alias := flag.former_name) in values:
            used.add(alias)
            value = values.pop(alias)
            if values.setdefault(name, value) != value:
                right = f"is the deprecated name of --{name} and has another value; remove it"
                violations.append((alias, right))
    return frozenset(used), violations


_HIGHEST_PORT = 65535

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = re.compile(
    rf"((?=.{{1,253}}/){_LABEL}(\.{_LABEL})*/)?(?=.{{1,63}}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
)
"""Qualified name in Kubernetes, such as a label key or a load balancer class."""

_OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LONGEST_NAME = 253


def positive(value: timedelta) -> str:
    """Require a duration above zero."""
    return "" if value > timedelta(0) else "must be longer than 0s"


def not_negative(value: timedelta) -> str:
    """Require a duration of zero or more."""
    return "" if value >= timedelta(0) else "must be 0s or longer"


def at_least_one(value: int) -> str:
    """Require a concurrency or a budget of at least one: with zero, no work would be done."""
    return "" if value >= 1 else "must be 1 or more"


def zero_or_more(zero: str = "") -> Callable[[float], str]:
    """Return a check for a finite number of at least zero; `zero` is the meaning of 0."""
    right = f"must be 0 ({zero}) or more" if zero else "must be 0 or more"
    return lambda value: "" if 0 <= value < float("inf") else right


def port(value: int) -> str:
    """Require a TCP port, or 0 for no server."""
    right = f"must be from 0 (no server) to {_HIGHEST_PORT}"
    return "" if 0 <= value <= _HIGHEST_PORT else right


def no_blanks(what: str) -> Callable[[Iterable[str]], str]:
    """Return a check for a list without blank entries; messages call an entry `what`."""
    right = f"{what} cannot be empty or white space"
    return lambda entries: "" if all(entry.strip() for entry in entries) else right


def qualified(what: str) -> Callable[[Iterable[str]], str]:
    """Return a check for a list of names such as `a` or `example.com/a`.

    Messages call an entry `what`.
    """

    def check(entries: Iterable[str]) -> str:
        wrong = next((entry for entry in entries if not _QUALIFIED.fullmatch(entry)), None)
        return "" if wrong is None else f"{wrong!r} is not a {what}; it must look like {_EXAMPLES}"

    return check


_EXAMPLES = "internal or example.com/internal"


def is_object_name(text: str) -> bool:
    """Return whether Kubernetes accepts a text as an object name (a DNS subdomain)."""
    return len(text) <= _LONGEST_NAME and _OBJECT_NAME.fullmatch(text) is not None


def one_of(*words: str) -> Callable[[str], str]:
    """Return a check for one of several words."""
    *most, last = (f'"{word}"' for word in words)
    right = f"must be {', '.join(most)} or {last}"
    return lambda value: "" if value in words else right


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return `; did you mean NAME?` with the known name closest to a word.

    Empty if no name is close, or if the word is known.

    Args:
        word: the unknown word.
        known: known names.
        prefix: text before the name in the result, such as `--`.
    """
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {prefix}{near[0]}?" if near and near[0] != word else ""


Stage = Literal["ALPHA", "BETA", "GA", "DEPRECATED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureGate:
    """Feature gate.

    Attributes:
        name: name in the flag.
        default: value when the flag does not set the gate.
        stage: maturity; `AllAlpha` and `AllBeta` set all gates of a stage.
        help: effect in one sentence; for a gate without effect, what the daemon does whether
            the gate is on or off.
    """

    name: str
    default: bool
    stage: Stage
    help: str


def gate_values(known: Collection[FeatureGate], settings: Mapping[str, bool]) -> dict[str, bool]:
    """Return the effective value of each gate.

    Raises:
        ValueError: `settings` contains unknown gates; the message lists all of them.
    """
    names = {"AllAlpha", "AllBeta", *(gate.name for gate in known)}
    if unknown := [name for name in settings if name not in names]:
        raise ValueError("; ".join(f"unrecognized feature gate: {name}" for name in unknown))
    of_all = {"ALPHA": settings.get("AllAlpha"), "BETA": settings.get("AllBeta")}
    values = {}
    for gate in known:
        together = of_all.get(gate.stage)
        values[gate.name] = settings.get(gate.name, gate.default if together is None else together)
    return values


def missing(name: str) -> str:
    """Return the message for a required flag without a value."""
    known = f"; installed: {', '.join(provider_names()) or 'none'}"
    return f"--{name} is required{known if name == 'cloud-provider' else ''}"


def provider_names() -> Sequence[str]:
    """Return the names of the installed providers, sorted, without importing them."""
    from importlib.metadata import entry_points

    return sorted({entry.name for entry in entry_points(group=PROVIDERS)})
