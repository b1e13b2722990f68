"""The cloud config of a provider, declared once: for reading, and for telling people about it.

```python
class Config(cloud.Settings, frozen=True, kw_only=True):
    url: Annotated[str, cloud.setting("Where the API is.")]
    token: Annotated[str, cloud.setting("For the API.", secret=True, file="token_file")]
    timeout: Annotated[timedelta, cloud.setting("Of one request.")] = timedelta(seconds=30)
    retries: Annotated[int, cloud.setting("How often a request is repeated.", least=0)] = 3
    labels: Annotated[dict[str, str], cloud.setting("Set on all that is made.")] = {}
```

A field without a default is required. Fields may be text, numbers, booleans, durations, a
`Literal` or an `Enum`, any type that is made from a text (`pathlib.Path`, `IPv4Network`), lists,
tuples, sets and mappings of these, and further Structs; each of them or None.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from ccm.base import parsing, redact
from ccm.base.parsing import parse_bool, parse_duration

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_NUMBER = re.compile(r"-?[0-9]{1,19}(\.[0-9]+)?([eE][-+]?[0-9]{1,2})?")


class ConfigError(Exception):
    """The provider's configuration is wrong; the daemon prints the message and exits with 1.

    Attributes:
        faults: every fault found, one sentence each.
    """

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class Fields:
    """Reads typed values from a mapping and collects every fault.

    Read all fields, then call `done()`, which raises one `ConfigError` with every fault,
    unknown names included. A field that failed reads as its default meanwhile.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        where: str = "",
        secret_file: Callable[[str], str] | None = None,
    ) -> None:
        self._values = values
        self._where = f"{where}." if where else ""
        self._secret_file = secret_file
        self._seen: set[str] = set()
        self.faults: list[str] = []

    def text(self, name: str, default: str = "", *, required: bool = False) -> str:
        """A non-empty string; a missing one is a fault only if `required`.

        The log never shows the value if the name ends like that of a secret: password, token,
        secret, api key. `secret` reads one of another name.
        """
        return self._field(name, inspect.StrType(), default, required=required)

    def secret(self, name: str, default: str = "", *, required: bool = False) -> str:
        """As `text`, for a value that the log must never show."""
        kind = inspect.Metadata(inspect.StrType(), extra={"secret": True})
        return self._field(name, kind, default, required=required)

    def integer(self, name: str, default: int, *, least: int | None = None) -> int:
        """A whole number, at least `least`."""
        return self._field(name, inspect.IntType(ge=least), default)

    def boolean(self, name: str, default: bool) -> bool:
        """True or false, also as a word."""
        return self._field(name, inspect.BoolType(), default)

    def duration(self, name: str, default: timedelta) -> timedelta:
        """A Go duration such as 30s, above zero."""
        return self._field(name, inspect.TimeDeltaType(), default)

    def done(self) -> None:
        """Check for unknown names and report.

        Raises:
            ConfigError: there was any fault.
        """
        for name in self._values:
            if name not in self._seen:
                near = difflib.get_close_matches(str(name), self._seen, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                known = (
                    f"known are {', '.join(sorted(self._seen))}" if self._seen else "leave it out"
                )
                self._fault(name, f"is unknown; {hint}{known}")
        if self.faults:
            raise ConfigError(*self.faults)

    def read(self, declared: type[S]) -> S:
        """Everything as the Struct that declares it.

        Raises:
            ConfigError: there was any fault, or the Struct's `__post_init__` found one.
        """
        absent: Any = None
        values = {
            one.name: self._field(one.encode_name, one.type, absent, required=one.required)
            for one in fields_of(declared)
        }
        self.faults += getattr(declared, "contradictions", lambda _: ())(values)
        self.done()
        try:
            return declared(
                **{name: value for name, value in values.items() if value is not absent}
            )
        except ValueError as error:
            raise ConfigError(f"{self._where}{error}") from error

    def _field(self, name: str, kind: inspect.Type, default: T, *, required: bool = False) -> T:
        is_section = isinstance(unwrapped(kind)[0], inspect.StructType)
        if required and self._values.get(name) is None and is_section:
            # Every setting that is missing in it is named, not just that it is not there.
            self._seen.add(name)
            made = self._made(kind, {}, f"{self._where}{name}", is_hidden=False)
            return default if made is None else made
        value = self._given(name, unwrapped(kind)[1].get("file", ""), required=required)
        if value is None:
            return default
        place = f"{self._where}{name}"
        made = self._made(kind, value, place, is_hidden=is_secret(name, kind))
        return default if made is None else made

    def _given(self, name: str, file_name: str, *, required: bool) -> object:
        """What stands there, or in the file that is named instead; None: nothing does."""
        self._seen.add(name)
        value = self._values.get(name)
        is_missing = value is None or (value == "" and bool(required or file_name))
        file = self.text(file_name) if file_name else ""
        if file and not is_missing:
            self._fault(name, f"is given beside {file_name}; one of the two is required")
        elif file:
            assert self._secret_file is not None
            try:
                return self._secret_file(file)
            except ConfigError as error:
                where = f"{self._where}{file_name}"
                self.faults += [f"{where}: {fault}" for fault in error.faults]
                return None
        elif is_missing and required:
            also = f", and so is {file_name}; one of the two" if file_name else "; it"
            self._fault(name, f"is missing{also} is required")
        return None if is_missing else value

    def _fault(self, name: str, text: str) -> None:
        self.faults.append(f"{self._where}{name} {text}")

    def _made(self, kind: inspect.Type, value: Any, place: str, *, is_hidden: bool) -> Any:
        """The value as its kind wants it; None after a fault."""
        kind, more = unwrapped(kind)
        if isinstance(kind, inspect.StructType) and isinstance(value, dict):
            return self._section(kind.cls, value, place)
        if isinstance(kind, inspect.DictType) and isinstance(value, dict):
            return {
                str(key): self._made(kind.value_type, each, f"{place}.{key}", is_hidden=is_hidden)
                for key, each in value.items()
            }
        if isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
            items = [
                self._made(kind.item_type, each, f"{place}[{at}]", is_hidden=is_hidden)
                for at, each in enumerate(value)
            ]
            return items if isinstance(kind, inspect.ListType) else tuple(items)
        try:
            if is_hidden:
                redact.know(str(value))
            return more["parse"](_text(kind, value)) if more.get("parse") else _scalar(kind, value)
        except ValueError as error:
            rule = f"must {more['expects']}" if more.get("expects") else error
            self.faults.append(f"{place} is {_shown(kind, value, is_hidden=is_hidden)}; it {rule}")
            return None

    def _section(self, declared: type, values: Mapping[str, Any], place: str) -> Any:
        try:
            return Fields(values, where=place, secret_file=self._secret_file).read(declared)
        except ConfigError as error:
            self.faults.extend(error.faults)
            return None


def fields_of(declared: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """The settings that a Struct declares."""
    kind = inspect.type_info(declared)
    assert isinstance(kind, inspect.StructType)
    return kind.fields


def from_environment(
    declared: type[msgspec.Struct], environ: Mapping[str, str]
) -> Mapping[str, Any]:
    """The variables that have names of settings; an empty one is none.

    Whether something is true they may say in all words of Go (`1`, `T`), as Go programs read them.
    """
    found: dict[str, Any] = {}
    for one in fields_of(declared):
        kind, more = unwrapped(one.type)
        for name in (one.encode_name, more.get("file", "")):
            if text := environ.get(name):
                found[name] = text
        truth = parse_bool(str(found.get(one.encode_name)))
        if isinstance(kind, inspect.BoolType) and truth is not None:
            found[one.encode_name] = truth
    return found


def unwrapped(kind: inspect.Type) -> tuple[inspect.Type, Mapping[str, Any]]:
    """A type without the None that an absent value is, and what `setting` says about it."""
    more: dict[str, Any] = {}
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            more |= {**(kind.extra_json_schema or {}), **(kind.extra or {})}
            kind = kind.type
        else:
            (kind,) = (one for one in kind.types if not isinstance(one, inspect.NoneType))
    return kind, more


def is_secret(name: str, kind: inspect.Type) -> bool:
    """Whether a setting of this name and type is one: it is declared so, or its name says it."""
    kind, more = unwrapped(kind)
    return more.get("secret", False) or (
        isinstance(kind, inspect.StrType) and redact.is_secret(name)
    )


def choices(kind: inspect.Type) -> list[Any]:
    """The values that a Literal or an Enum has; empty for any other type."""
    if isinstance(kind, inspect.EnumType):
        return [one.value for one in kind.cls]
    return list(kind.values) if isinstance(kind, inspect.LiteralType) else []


def _scalar(kind: inspect.Type, value: Any) -> Any:
    """The value of a single setting; ValueError with the rule that it breaks."""
    if type(kind) not in _READERS:
        raise TypeError(f"a setting cannot be of type {kind}")
    return _READERS[type(kind)](kind, value)


def _text(_: Any, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text in quotes")
    return value


def _whole(kind: Any, value: Any) -> int:
    if not _INTEGER.fullmatch(str(value)):
        raise ValueError("must be a whole number")
    return _limited(kind, int(value))


def _number(kind: Any, value: Any) -> float:
    if not _NUMBER.fullmatch(str(value)):
        raise ValueError("must be a number")
    return _limited(kind, float(value))


def _limited(kind: Any, number: T) -> T:
    if kind.ge is not None and number < kind.ge:
        raise ValueError(f"must be at least {kind.ge}")
    return number


def _truth(_: Any, value: Any) -> bool:
    word = str(value).lower()
    if word not in ("true", "false"):
        raise ValueError("must be true or false")
    return word == "true"


def _duration(_: Any, value: Any) -> timedelta:
    try:
        parsed = parse_duration(str(value))
    except ValueError:
        parsed = timedelta(0)
    if parsed <= timedelta(0):
        raise ValueError("must be a duration above zero, such as 30s or 1m30s")
    return parsed


def _choice(kind: Any, value: Any) -> Any:
    known = choices(kind)
    if value not in known:
        raise ValueError(f"must be one of {', '.join(map(str, known))}")
    return kind.cls(value) if isinstance(kind, inspect.EnumType) else value


def _custom(kind: Any, value: Any) -> Any:
    """A type that is made from a text: a path, an address."""
    text = _text(kind, value)
    try:
        return kind.cls(text)
    except ValueError:
        raise ValueError(f"must be what {kind.cls.__name__} takes") from None


def _list(_: Any, __: Any) -> Any:
    raise ValueError("must be a list")


def _mapping(_: Any, __: Any) -> Any:
    raise ValueError("must be a mapping of names to values")


_READERS: Mapping[type[inspect.Type], Callable[[Any, Any], Any]] = {
    inspect.AnyType: lambda _, value: value,
    inspect.BoolType: _truth,
    inspect.CustomType: _custom,
    inspect.DictType: _mapping,
    inspect.EnumType: _choice,
    inspect.FloatType: _number,
    inspect.IntType: _whole,
    inspect.ListType: _list,
    inspect.LiteralType: _choice,
    inspect.StrType: _text,
    inspect.StructType: _mapping,
    inspect.TimeDeltaType: _duration,
    inspect.VarTupleType: _list,
}
"""What reads a value of each type, or says what it should have been."""


def _shown(kind: inspect.Type, value: Any, *, is_hidden: bool) -> str:
    """A wrong value as a message may show it: no secret, nor what may be one.

    What is no text where text is wanted may be a secret that lost its quotes; a collection may
    hold one.
    """
    wants_text = isinstance(kind, inspect.StrType | inspect.CustomType)
    if not isinstance(value, str if wants_text else str | int | float):
        return f"of type {type(value).__name__}"
    return "wrong, and not shown as it is a secret" if is_hidden else repr(value)


class Settings(msgspec.Struct, frozen=True):
    """A base for such Structs whose `repr` shows no secret."""

    @classmethod
    def contradictions(cls, values: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG003
        """What is wrong with several settings together, one sentence each; override it.

        Args:
            values: field -> value; None where there is none, and for one that cannot be read.
        """
        return ()

    def __repr__(self) -> str:
        shown = (
            f"{one.name}={redact.MASK if _is_secret(one) else repr(getattr(self, one.name))}"
            for one in fields_of(type(self))
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def setting(
    meaning: str,
    *,
    secret: bool = False,
    least: float | None = None,
    file: str = "",
    parse: Callable[[str], Any] | None = None,
    expects: str = "",
) -> msgspec.Meta:
    """What there is to say of a field beyond its type.

    Args:
        meaning: for people, one sentence.
        secret: never shown and never logged; so is a field whose name ends like that of a
            secret: password, token, secret, api key.
        least: the lowest number.
        file: name of a further setting: a file that holds the value instead. The provider is
            opened anew when it changes. The value is a secret then.
        parse: text -> value; ValueError for any other text.
        expects: what is right, in words that follow "it must".
    """
    more = {"secret": secret or bool(file), "file": file, "parse": parse, "expects": expects}
    return msgspec.Meta(description=meaning, ge=least, extra=more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a cloud config, for people.

    Attributes:
        name: with its sections before dots; `[]` stands for each of a list, `*` for each name.
        kind: its values, in words.
        default: as one would write it; empty if it has none.
        required: whether the provider refuses to open without it.
        help: what it means; empty if it is not declared.
    """

    name: str
    kind: str
    default: str = ""
    required: bool = False
    help: str = ""


def table(declared: type[msgspec.Struct]) -> list[Setting]:
    """Every setting that a Struct declares, in its order."""
    return list(_rows(declared, ""))


def markdown(declared: type[msgspec.Struct]) -> str:
    """The same as a table for people."""
    rows = ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
    for one in table(declared):
        default = "required" if one.required else f"`{one.default}`" if one.default else ""
        rows.append(f"| `{one.name}` | {one.kind} | {default} | {one.help} |")
    return "\n".join(rows)


def _rows(declared: type[msgspec.Struct], where: str) -> Iterator[Setting]:
    for one in fields_of(declared):
        name = f"{where}{one.encode_name}"
        section, suffix = _section(one.type)
        if section is not None:
            yield from _rows(section.cls, f"{name}{suffix}.")
            continue
        more = unwrapped(one.type)[1]
        file = more.get("file")
        yield Setting(
            name=name,
            kind="secret" if _is_secret(one) else _words(one.type),
            default="" if _is_secret(one) else _written(one.default),
            required=one.required and not file,
            help=more.get("description", ""),
        )
        if file:
            text = f"A file that holds {one.encode_name} instead; followed when it changes."
            yield Setting(name=f"{where}{file}", kind="text", help=text)


def _section(kind: inspect.Type) -> tuple[inspect.StructType | None, str]:
    """The Struct that stands there, in a list, or under names; and how its settings are named."""
    kind, _ = unwrapped(kind)
    if isinstance(kind, inspect.StructType):
        return kind, ""
    for inner, suffix in (("item_type", "[]"), ("value_type", ".*")):
        if hasattr(kind, inner):
            found, more = _section(getattr(kind, inner))
            return found, suffix + more
    return None, ""


def _is_secret(one: inspect.Field) -> bool:
    return is_secret(one.encode_name, one.type)


def _words(kind: inspect.Type) -> str:
    """The values of a type, in words."""
    kind, _ = unwrapped(kind)
    if isinstance(kind, inspect.DictType):
        return f"names with {_words(kind.value_type)}"
    if hasattr(kind, "item_type"):
        return f"list of {_words(kind.item_type)}"
    if isinstance(kind, inspect.CustomType):
        return "file" if issubclass(kind.cls, PurePath) else kind.cls.__name__
    least = getattr(kind, "ge", None)
    known = " or ".join(map(str, choices(kind))) or _WORDS.get(type(kind), "any")
    return known if least is None else f"{known}, at least {least}"


_WORDS: Mapping[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.IntType: "whole number",
    inspect.FloatType: "number",
    inspect.BoolType: "true or false",
    inspect.TimeDeltaType: "duration",
}


def _written(value: Any) -> str:
    """A default as one would write it; empty where there is none."""
    if value in (None, msgspec.NODEFAULT, ()):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return parsing.format_duration(value)
    if isinstance(value, tuple):
        return ", ".join(map(_written, value))
    return str(value.value if isinstance(value, Enum) else value)
