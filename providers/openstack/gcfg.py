"""Parser for the format of `cloud.conf`: that of git's configuration files.

It differs from other INI formats: values may be quoted and have escapes, a section may have a name
in quotes (`[LoadBalancerClass "internal"]`), and a key may be repeated. Names of sections and keys
are case-insensitive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

Key = dict[str, list[str | None]]
"""Key in lower case -> its values in order; None = the key stands alone, without `=`."""

_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)\s*(?:"((?:[^"\\]|\\.)*)")?\s*\]\s*(?:[;#].*)?')
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*(=?)(.*)")
_CONTINUED = re.compile(r"(?<!\\)(\\\\)*\\$")
_ESCAPES = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "b": "\b"}


def parse(text: str) -> dict[tuple[str, str], Key]:
    """Return (section in lower case, its name in quotes or an empty text) -> keys.

    A section that occurs twice is one section.

    Raises:
        ValueError: a line is malformed; the message has its number, but never its text, which may
            be a secret.
    """
    sections: dict[tuple[str, str], Key] = {}
    section: Key | None = None
    for number, line in _lines(text):
        try:
            if line.startswith("["):
                section = sections.setdefault(_parse_section(line), {})
            elif section is None:
                raise ValueError("a key before the first section")
            else:
                key, value = _parse_key(line)
                section.setdefault(key, []).append(value)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return sections


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line, without comments and blank lines; join continued ones."""
    start, pending = 0, ""
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        if not pending:
            start = number
            if line.strip()[:1] in ("", ";", "#"):
                continue
        pending += line
        if _CONTINUED.search(pending):
            pending = pending[:-1]
            continue
        yield start, pending.strip()
        pending = ""
    if pending:
        raise ValueError(f"line {start}: the file ends after a backslash")


def _parse_section(line: str) -> tuple[str, str]:
    match = _SECTION.fullmatch(line)
    if match is None:
        raise ValueError('a section must look like [Name] or [Name "name"]')
    return match[1].lower(), re.sub(r"\\(.)", r"\1", match[2] or "")


def _parse_key(line: str) -> tuple[str, str | None]:
    match = _KEY.fullmatch(line)
    if match is None or (not match[2] and match[3].strip(" \t")[:1] not in ("", ";", "#")):
        raise ValueError("a setting must look like key = value")
    return match[1].lower(), _parse_value(match[3].lstrip()) if match[2] else None


def _parse_value(raw: str) -> str:
    text, end, is_quoted = "", 0, False
    letters = iter(raw)
    for letter in letters:
        if letter == "\\":
            escape = next(letters, "")
            if escape not in _ESCAPES:
                raise ValueError(r"a backslash must be written \\, and a quote \"")
            text += _ESCAPES[escape]
            end = len(text)
        elif letter == '"':
            is_quoted = not is_quoted
            end = len(text)
        elif letter in ";#" and not is_quoted:
            break
        else:
            text += letter
            if is_quoted or not letter.isspace():
                end = len(text)
    if is_quoted:
        raise ValueError("a quote is not closed")
    return text[:end]
