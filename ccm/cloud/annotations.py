"""Service annotations of a provider: one declaration for reading and for validation.

A provider declares each annotation with `ServiceAnnotation`, reads it with `read`, and lists all of
them as `Cloud.service_annotation_schema`. The admission webhook of the daemon then rejects a
Service with an invalid value, with the same message as the error that `read` raises in a reconcile.
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

_MAX_SHOWN = 80

_PARSE_ERRORS = (ValueError, ArithmeticError)
"""Errors that `parse` may raise; `timedelta` and `Decimal` raise ArithmeticError for a number out
of range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAnnotation(Generic[T]):
    """Declaration of one Service annotation.

    Attributes:
        name: the full annotation key.
        expects: the valid values, phrased to follow "expected".
        default: the value for a Service without the annotation.
        shown: the default in the annotation's own syntax; empty if there is none to show.
        help: the effect of the annotation, one sentence.
        parse: converts text without surrounding white space to the value; raises ValueError for
            invalid text. It must not block or do I/O.
    """

    name: str
    expects: str
    default: T
    shown: str
    help: str
    parse: Callable[[str], T]

    def read(self, service: Service) -> T:
        """Return the value for a Service, or `default` where the annotation is absent.

        Raises:
            InvalidArgument: the value is invalid; the message names the expected values.
        """
        text = service.annotations.get(self.name)
        if text is None:
            return self.default
        try:
            return self.parse(text.strip())
        except _PARSE_ERRORS as error:
            raise InvalidArgument(self._error_message(text)) from error

    def fault(self, text: str) -> str:
        """Return the error message for an annotation value; empty for a valid one."""
        try:
            self.parse(text.strip())
        except _PARSE_ERRORS:
            return self._error_message(text)
        return ""

    def _error_message(self, text: str) -> str:
        text = redact.mask_text(text)
        shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
        return f"annotation {self.name}: {shown!r} is invalid; expected {self.expects}"


def truth(text: str) -> bool:
    """Parse a boolean in every spelling of Go's `strconv.ParseBool`.

    Declarations of boolean annotations use this function as `ServiceAnnotation.parse`.

    Raises:
        ValueError: the text is no boolean.
    """
    value = parse_bool(text)
    if value is None:
        raise ValueError(text)
    return value


def markdown(schema: Iterable[ServiceAnnotation[Any]], *, without: str = "") -> str:
    """Return the annotations as a Markdown table.

    Args:
        schema: declarations of the annotations.
        without: text of the default column for an annotation whose `shown` is empty.
    """
    rows = ["| annotation | values | default | effect |", "| --- | --- | --- | --- |"]
    for annotation in schema:
        default = f"`{annotation.shown}`" if annotation.shown else without
        rows.append(
            f"| `{annotation.name}` | {annotation.expects} | {default} | {annotation.help} |"
        )
    return "\n".join(rows)
