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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import inspect

from ccm.base import parsing, redact
from ccm.cloud import fields


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
            for one in fields.fields_of(type(self))
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
    for one in fields.fields_of(declared):
        name = f"{where}{one.encode_name}"
        section, suffix = _section(one.type)
        if section is not None:
            yield from _rows(section.cls, f"{name}{suffix}.")
            continue
        more = fields.unwrapped(one.type)[1]
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
    kind, _ = fields.unwrapped(kind)
    if isinstance(kind, inspect.StructType):
        return kind, ""
    for inner, suffix in (("item_type", "[]"), ("value_type", ".*")):
        if hasattr(kind, inner):
            found, more = _section(getattr(kind, inner))
            return found, suffix + more
    return None, ""


def _is_secret(one: inspect.Field) -> bool:
    return fields.is_secret(one.encode_name, one.type)


def _words(kind: inspect.Type) -> str:
    """The values of a type, in words."""
    kind, _ = fields.unwrapped(kind)
    if isinstance(kind, inspect.DictType):
        return f"names with {_words(kind.value_type)}"
    if hasattr(kind, "item_type"):
        return f"list of {_words(kind.item_type)}"
    if isinstance(kind, inspect.CustomType):
        return "file" if issubclass(kind.cls, PurePath) else kind.cls.__name__
    least = getattr(kind, "ge", None)
    known = " or ".join(map(str, fields.choices(kind))) or _WORDS.get(type(kind), "any")
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
