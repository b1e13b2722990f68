"""What a provider says about its Service annotations, once, for reading and for checking.

A provider declares each annotation with `ServiceAnnotation`, reads it with `read`, and lists
all of them as `Cloud.service_annotation_schema`. The daemon's admission webhook then refuses a
Service with a wrong value when somebody writes it, in the words the provider would use when
it balances that Service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ccm.base import redact
from ccm.base.parsing import parse_bool
from ccm.cloud.errors import InvalidArgument
from ccm.model import Service

T = TypeVar("T")

_SHOWN_LENGTH = 80

_REFUSALS = (ValueError, ArithmeticError)
"""What `parse` may raise; `timedelta` and `Decimal` raise the latter for a number out of range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAnnotation(Generic[T]):
    """One annotation.

    Attributes:
        name: the whole name.
        expects: its values, in words that follow "expected".
        default: the value of a Service without it.
        shown: the default as one would write it.
        help: what it does, one sentence.
        parse: text without white space around it -> value; ValueError for any other. It
            answers at once and asks nobody.
    """

    name: str
    expects: str
    default: T
    shown: str
    help: str
    parse: Callable[[str], T]

    def read(self, service: Service) -> T:
        """The value that a Service asks for.

        Raises:
            InvalidArgument: the text is no value; the message says what is expected.
        """
        text = service.annotations.get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text.strip())
        except _REFUSALS as error:
            raise InvalidArgument(self._complaint(text)) from error

    def fault(self, text: str) -> str:
        """What is wrong with a text, one sentence; empty if it is a value."""
        try:
            self.parse(text.strip())
        except _REFUSALS:
            return self._complaint(text)
        return ""

    def _complaint(self, text: str) -> str:
        text = redact.words(text)
        shown = text if len(text) <= _SHOWN_LENGTH else text[:_SHOWN_LENGTH] + "..."
        return f"annotation {self.name}: {shown!r} is not understood; expected {self.expects}"


def truth(text: str) -> bool:
    """For `parse`: true or false, in all words of Go."""
    found = parse_bool(text)
    if found is None:
        raise ValueError(text)
    return found


def markdown(schema: Iterable[ServiceAnnotation[Any]], *, without: str = "") -> str:
    """Annotations as a table for people; `without` stands for a default that nobody states."""
    rows = ["| annotation | values | default | effect |", "| --- | --- | --- | --- |"]
    for one in schema:
        default = f"`{one.shown}`" if one.shown else without
        rows.append(f"| `{one.name}` | {one.expects} | {default} | {one.help} |")
    return "\n".join(rows)
