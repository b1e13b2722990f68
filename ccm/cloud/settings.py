"""The cloud config of a provider: one declaration for parsing and for documentation.

```python
class Config(cloud.Settings, frozen=True, kw_only=True):
    url: Annotated[str, cloud.setting("URL of the API.")]
    token: Annotated[str, cloud.setting("API token.", secret=True, file="token_file")]
    timeout: Annotated[timedelta, cloud.setting("Limit of one request.")] = timedelta(seconds=30)
    retries: Annotated[int, cloud.setting("Maximum repetitions of a request.", least=0)] = 3
    labels: Annotated[dict[str, str], cloud.setting("Labels of each created resource.")] = {}
```

A field without a default is required. Field types are text, numbers, booleans, durations,
`Literal`, `Enum`, types constructed from a string (`pathlib.Path`, `IPv4Network`), and further
Structs. Lists, tuples and mappings of these are allowed, and each type may be optional (None).
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
    """The provider's configuration is invalid; the daemon prints the message and exits with 1.

    Attributes:
        faults: every fault found, one sentence each.
    """

    def __init__(self, *faults: str) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class Fields:
    """Reader of typed values from a mapping; it collects all faults.

    Read all fields, then call `done()`, which raises one `ConfigError` with every fault,
    including unknown names. Until then, the methods return the default of an invalid field.
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
        """Return a string; an empty or missing one is a fault only if `required`.

        The log masks the value if the name has the suffix of a secret: password, token,
        secret, api key. For a secret of another name use `secret`.
        """
        return self._field(name, inspect.StrType(), default, required=required)

    def secret(self, name: str, default: str = "", *, required: bool = False) -> str:
        """Return a string like `text`; the log masks the value."""
        kind = inspect.Metadata(inspect.StrType(), extra={"secret": True})
        return self._field(name, kind, default, required=required)

    def integer(self, name: str, default: int, *, least: int | None = None) -> int:
        """Return an integer of at least `least`."""
        return self._field(name, inspect.IntType(ge=least), default)

    def boolean(self, name: str, default: bool) -> bool:
        """Return a boolean, given as a boolean or as the string true or false."""
        return self._field(name, inspect.BoolType(), default)

    def duration(self, name: str, default: timedelta) -> timedelta:
        """Return a duration above zero, given in Go syntax such as 30s."""
        return self._field(name, inspect.TimeDeltaType(), default)

    def done(self) -> None:
        """Check for unknown names and report all faults.

        Raises:
            ConfigError: there was at least one fault.
        """
        for name in self._values:
            if name not in self._seen:
                near = difflib.get_close_matches(str(name), self._seen, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                known = f"known are {', '.join(sorted(self._seen))}" if self._seen else "remove it"
                self._add_fault(name, f"is unknown; {hint}{known}")
        if self.faults:
            raise ConfigError(*self.faults)

    def read(self, declared: type[S]) -> S:
        """Read all fields into the Struct that declares them.

        Raises:
            ConfigError: there was at least one fault, or the Struct's `__post_init__` raised
                ValueError.
        """
        absent: Any = None
        values = {
            field.name: self._field(field.encode_name, field.type, absent, required=field.required)
            for field in fields_of(declared)
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
        is_section = isinstance(unwrap(kind)[0], inspect.StructType)
        if required and self._values.get(name) is None and is_section:
            # Report every missing setting of the section, not only the missing section.
            self._seen.add(name)
            converted = self._convert(kind, {}, f"{self._where}{name}", is_hidden=False)
            return default if converted is None else converted
        value = self._raw_value(name, unwrap(kind)[1].get("file", ""), required=required)
        if value is None:
            return default
        place = f"{self._where}{name}"
        converted = self._convert(kind, value, place, is_hidden=is_secret(name, kind))
        return default if converted is None else converted

    def _raw_value(self, name: str, file_name: str, *, required: bool) -> object:
        """Return the raw value, or the content of the file given instead.

        None = neither is set, or there was a fault, which is added to `faults`.
        """
        self._seen.add(name)
        value = self._values.get(name)
        is_missing = value is None or (value == "" and bool(required or file_name))
        file = self.text(file_name) if file_name else ""
        if file and not is_missing:
            self._add_fault(name, f"conflicts with {file_name}; set only one of them")
        elif file:
            assert self._secret_file is not None
            try:
                return self._secret_file(file)
            except ConfigError as error:
                where = f"{self._where}{file_name}"
                self.faults += [f"{where}: {fault}" for fault in error.faults]
                return None
        elif is_missing and required:
            advice = f"set it or {file_name}" if file_name else "it is required"
            self._add_fault(name, f"is missing; {advice}")
        return None if is_missing else value

    def _add_fault(self, name: str, text: str) -> None:
        self.faults.append(f"{self._where}{name} {text}")

    def _convert(self, kind: inspect.Type, value: Any, place: str, *, is_hidden: bool) -> Any:
        """Convert a value to its declared type; None after a fault."""
        kind, more = unwrap(kind)
        if isinstance(kind, inspect.StructType) and isinstance(value, dict):
            return self._section(kind.cls, value, place)
        if isinstance(kind, inspect.DictType) and isinstance(value, dict):
            return {
                str(key): self._convert(
                    kind.value_type, item, f"{place}.{key}", is_hidden=is_hidden
                )
                for key, item in value.items()
            }
        if isinstance(kind, inspect.ListType | inspect.VarTupleType) and isinstance(value, list):
            items = [
                self._convert(kind.item_type, item, f"{place}[{index}]", is_hidden=is_hidden)
                for index, item in enumerate(value)
            ]
            return items if isinstance(kind, inspect.ListType) else tuple(items)
        try:
            if is_hidden:
                redact.register(str(value))
            return (
                more["parse"](_convert_text(kind, value))
                if more.get("parse")
                else _convert_scalar(kind, value)
            )
        except ValueError as error:
            rule = f"must {more['expects']}" if more.get("expects") else error
            self.faults.append(
                f"{place} is {_format_invalid(kind, value, is_hidden=is_hidden)}; it {rule}"
            )
            return None

    def _section(self, declared: type, values: Mapping[str, Any], place: str) -> Any:
        try:
            return Fields(values, where=place, secret_file=self._secret_file).read(declared)
        except ConfigError as error:
            self.faults.extend(error.faults)
            return None


def fields_of(declared: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    """Return the fields of a Struct."""
    kind = inspect.type_info(declared)
    assert isinstance(kind, inspect.StructType)
    return kind.fields


def from_environment(
    declared: type[msgspec.Struct], environ: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return the values of the environment variables that are named like settings.

    An empty variable counts as unset. Booleans accept all spellings of Go (`1`, `T`).
    """
    variables: dict[str, Any] = {}
    for field in fields_of(declared):
        kind, more = unwrap(field.type)
        for name in (field.encode_name, more.get("file", "")):
            if text := environ.get(name):
                variables[name] = text
        boolean = parse_bool(str(variables.get(field.encode_name)))
        if isinstance(kind, inspect.BoolType) and boolean is not None:
            variables[field.encode_name] = boolean
    return variables


def unwrap(kind: inspect.Type) -> tuple[inspect.Type, Mapping[str, Any]]:
    """Return a type without its optional None, and its extra metadata from `setting`."""
    more: dict[str, Any] = {}
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            more |= {**(kind.extra_json_schema or {}), **(kind.extra or {})}
            kind = kind.type
        else:
            (kind,) = (member for member in kind.types if not isinstance(member, inspect.NoneType))
    return kind, more


def is_secret(name: str, kind: inspect.Type) -> bool:
    """Return whether a setting is a secret, by its declaration or by the suffix of its name."""
    kind, more = unwrap(kind)
    return more.get("secret", False) or (
        isinstance(kind, inspect.StrType) and redact.is_secret_name(name)
    )


def choices(kind: inspect.Type) -> list[Any]:
    """Return the values of a Literal or an Enum; empty for any other type."""
    if isinstance(kind, inspect.EnumType):
        return [member.value for member in kind.cls]
    return list(kind.values) if isinstance(kind, inspect.LiteralType) else []


def _convert_scalar(kind: inspect.Type, value: Any) -> Any:
    """Convert a scalar setting. Raises ValueError with the violated rule."""
    if type(kind) not in _CONVERTERS:
        raise TypeError(f"a setting cannot be of type {kind}")
    return _CONVERTERS[type(kind)](kind, value)


def _convert_text(_: Any, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text in quotes")
    return value


def _convert_int(kind: Any, value: Any) -> int:
    if not _INTEGER.fullmatch(str(value)):
        raise ValueError("must be a whole number")
    return _check_minimum(kind, int(value))


def _convert_float(kind: Any, value: Any) -> float:
    if not _NUMBER.fullmatch(str(value)):
        raise ValueError("must be a number")
    return _check_minimum(kind, float(value))


def _check_minimum(kind: Any, number: T) -> T:
    if kind.ge is not None and number < kind.ge:
        raise ValueError(f"must be at least {kind.ge}")
    return number


def _convert_bool(_: Any, value: Any) -> bool:
    word = str(value).lower()
    if word not in ("true", "false"):
        raise ValueError("must be true or false")
    return word == "true"


def _convert_duration(_: Any, value: Any) -> timedelta:
    try:
        parsed = parse_duration(str(value))
    except ValueError:
        parsed = timedelta(0)
    if parsed <= timedelta(0):
        raise ValueError("must be a duration above zero, such as 30s or 1m30s")
    return parsed


def _convert_choice(kind: Any, value: Any) -> Any:
    known = choices(kind)
    if value not in known:
        raise ValueError(f"must be one of {', '.join(map(str, known))}")
    return kind.cls(value) if isinstance(kind, inspect.EnumType) else value


def _convert_custom(kind: Any, value: Any) -> Any:
    """Convert to a type constructed from a string, such as a path or an address."""
    text = _convert_text(kind, value)
    try:
        return kind.cls(text)
    except ValueError:
        raise ValueError(f"must be a valid {kind.cls.__name__}") from None


def _reject_list(_: Any, __: Any) -> Any:
    raise ValueError("must be a list")


def _reject_mapping(_: Any, __: Any) -> Any:
    raise ValueError("must be a mapping of names to values")


_CONVERTERS: Mapping[type[inspect.Type], Callable[[Any, Any], Any]] = {
    inspect.AnyType: lambda _, value: value,
    inspect.BoolType: _convert_bool,
    inspect.CustomType: _convert_custom,
    inspect.DictType: _reject_mapping,
    inspect.EnumType: _convert_choice,
    inspect.FloatType: _convert_float,
    inspect.IntType: _convert_int,
    inspect.ListType: _reject_list,
    inspect.LiteralType: _convert_choice,
    inspect.StrType: _convert_text,
    inspect.StructType: _reject_mapping,
    inspect.TimeDeltaType: _convert_duration,
    inspect.VarTupleType: _reject_list,
}
"""Type -> converter; it raises ValueError with the rule that a value breaks."""


def _format_invalid(kind: inspect.Type, value: Any, *, is_hidden: bool) -> str:
    """Return an invalid value for an error message, or only its type if it may be secret.

    A number where text is expected may be an unquoted secret, and a collection may contain a
    secret.
    """
    wants_text = isinstance(kind, inspect.StrType | inspect.CustomType)
    if not isinstance(value, str if wants_text else str | int | float):
        return f"of type {type(value).__name__}"
    return "invalid (hidden because it is a secret)" if is_hidden else repr(value)


class Settings(msgspec.Struct, frozen=True):
    """Base class for a cloud config; its `repr` masks secrets."""

    @classmethod
    def contradictions(cls, values: Mapping[str, Any]) -> Sequence[str]:  # noqa: ARG003
        """Return faults in the combination of settings, one sentence each; none by default.

        A subclass may override this method.

        Args:
            values: field -> value; None for a field that is unset or invalid.
        """
        return ()

    def __repr__(self) -> str:
        shown = (
            f"{field.name}={redact.MASK if _is_secret(field) else repr(getattr(self, field.name))}"
            for field in fields_of(type(self))
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
    """Declare a field's properties beyond its type.

    Args:
        meaning: description of the setting, one sentence.
        secret: whether the value is masked everywhere. A field whose name has the suffix of a
            secret (password, token, secret, api key) is always masked.
        least: minimum of a number.
        file: name of an alternative setting, which is the path of a file with the value; empty =
            none. The provider is reopened when the file changes. With `file`, the value always
            counts as a secret.
        parse: converts text to the value; raises ValueError for invalid text.
        expects: the valid values, phrased to follow "it must".
    """
    more = {"secret": secret or bool(file), "file": file, "parse": parse, "expects": expects}
    return msgspec.Meta(description=meaning, ge=least, extra=more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Documentation of one setting of a cloud config.

    Attributes:
        name: name with its sections, separated by dots; `[]` stands for an item of a list, `*` for
            a key of a mapping.
        kind: description of the values.
        default: default in the syntax of the config; empty if there is none.
        required: whether opening the provider fails without the setting.
        help: description of the setting; empty if none is declared.
    """

    name: str
    kind: str
    default: str = ""
    required: bool = False
    help: str = ""


def table(declared: type[msgspec.Struct]) -> list[Setting]:
    """Return all settings of a Struct, including nested Structs, in order of declaration."""
    return list(_rows(declared, ""))


def markdown(declared: type[msgspec.Struct]) -> str:
    """Return all settings of a Struct as a Markdown table."""
    rows = ["| setting | values | default | meaning |", "| --- | --- | --- | --- |"]
    for entry in table(declared):
        default = "required" if entry.required else f"`{entry.default}`" if entry.default else ""
        rows.append(f"| `{entry.name}` | {entry.kind} | {default} | {entry.help} |")
    return "\n".join(rows)


def _rows(declared: type[msgspec.Struct], where: str) -> Iterator[Setting]:
    for field in fields_of(declared):
        name = f"{where}{field.encode_name}"
        section, suffix = _section(field.type)
        if section is not None:
            yield from _rows(section.cls, f"{name}{suffix}.")
            continue
        more = unwrap(field.type)[1]
        file = more.get("file")
        yield Setting(
            name=name,
            kind="secret" if _is_secret(field) else _describe_type(field.type),
            default="" if _is_secret(field) else _format_default(field.default),
            required=field.required and not file,
            help=more.get("description", ""),
        )
        if file:
            text = f"File with the value of {field.encode_name}; reloaded when it changes."
            yield Setting(name=f"{where}{file}", kind="text", help=text)


def _section(kind: inspect.Type) -> tuple[inspect.StructType | None, str]:
    """Return the Struct in a type (None = there is none) and a suffix for the setting's name.

    The suffix is `[]` for a list and `.*` for a mapping.
    """
    kind, _ = unwrap(kind)
    if isinstance(kind, inspect.StructType):
        return kind, ""
    for inner, suffix in (("item_type", "[]"), ("value_type", ".*")):
        if hasattr(kind, inner):
            struct, more = _section(getattr(kind, inner))
            return struct, suffix + more
    return None, ""


def _is_secret(field: inspect.Field) -> bool:
    return is_secret(field.encode_name, field.type)


def _describe_type(kind: inspect.Type) -> str:
    """Return a description of the values of a type."""
    kind, _ = unwrap(kind)
    if isinstance(kind, inspect.DictType):
        return f"names with {_describe_type(kind.value_type)}"
    if hasattr(kind, "item_type"):
        return f"list of {_describe_type(kind.item_type)}"
    if isinstance(kind, inspect.CustomType):
        return "file" if issubclass(kind.cls, PurePath) else kind.cls.__name__
    least = getattr(kind, "ge", None)
    known = " or ".join(map(str, choices(kind))) or _TYPE_NAMES.get(type(kind), "any")
    return known if least is None else f"{known}, at least {least}"


_TYPE_NAMES: Mapping[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.IntType: "whole number",
    inspect.FloatType: "number",
    inspect.BoolType: "true or false",
    inspect.TimeDeltaType: "duration",
}


def _format_default(value: Any) -> str:
    """Return a default in the syntax of the config; empty if there is none."""
    if value in (None, msgspec.NODEFAULT, ()):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, timedelta):
        return parsing.format_duration(value)
    if isinstance(value, tuple):
        return ", ".join(map(_format_default, value))
    return str(value.value if isinstance(value, Enum) else value)
