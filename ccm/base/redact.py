"""Secrets are taken out of every line before it is written, whoever wrote them into it.

Two ways work together. What is known to be secret is told to `know` by whoever reads it: a
token, a password of the cloud's configuration. What merely looks secret is found by its form:
Authorization values, user and password in a URL, `token=...`, JSON web tokens, private keys.
"""

from __future__ import annotations

import base64
import re
from collections import deque
from collections.abc import Iterable
from urllib.parse import quote

import msgspec

MASK = "[redacted]"
"""What stands in a secret's place."""

SHORTEST = 6
"""Characters that a secret must have to be looked for; a shorter one would also mask words."""

_MASK = MASK.encode()

_NAME = re.compile(
    r"(?i)(?:pass(?:word|wd|phrase)?|token|secret|authorization|(?:api|access|private)[-_]?key)$"
)

_KEYS = [
    kind + joint + b"key" for kind in (b"api", b"access", b"private") for joint in (b"", b"-", b"_")
]
_WORDS = (b"passw", b"passphrase", b"token", b"secret", *_KEYS)
_WORD = rb"(?:passw(?:or)?d|passphrase|token|secret|(?:api|access|private)[-_]?key)"
_AUTHORIZATION = rb"\bauthorization[\"'\\]*\s*[:=]\s*[\"'\\]*(?:(?:bearer|basic) +)?"
_FORMS = tuple(
    (hints, re.compile(form), kept + _MASK)
    for hints, form, kept in (
        (
            (b"-----begin ",),
            rb"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            b"",
        ),
        ((b"authorization",), rb"(?i)(" + _AUTHORIZATION + rb")[^\s\"'\\,]+", rb"\1"),
        (
            (b"bearer ", b"basic "),
            rb"\b((?i:bearer|basic)) +(?=[\w.~+/=-]*[\d.+/=A-Z_-])[\w.~+/=-]{6,}",
            rb"\1 ",
        ),
        ((b"@",), rb"(://)[^/\s\"'@?#]+(?=@)", rb"\1"),
        (_WORDS, rb"(?i)(" + _WORD + rb"=)(?!\")[^\s\"'\\&,;)]+", rb"\1"),
        (_WORDS, rb"(?i)(" + _WORD + rb"=\")(?:[^\"\\]|\\.)+", rb"\1"),
        (_WORDS, rb"(?i)(" + _WORD + rb"\\*[\"']\s*:\s*\\*[\"'])[^\"'\\]+", rb"\1"),
        ((b"eyj",), rb"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*", b""),
    )
)
"""(what must occur in the line, in lower case; the form; what is written in its place)"""

# One search for all of them: few lines have a hint, and every line is looked through.
_HINT = re.compile(b"|".join(sorted({re.escape(hint) for hints, _, _ in _FORMS for hint in hints})))

TRANSIENT = 8
"""How many secrets that replace each other are looked for at the same time."""

_lasting: set[str] = set()
_transient: deque[str] = deque(maxlen=TRANSIENT)
_needles: tuple[bytes, ...] = ()


def know(secret: str, *, lasting: bool = True) -> None:
    """Mask this text from now on, also where it is escaped or encoded; short ones are ignored.

    Args:
        secret: the text.
        lasting: False for a token that is replaced from time to time; of those the newest
            `TRANSIENT` are looked for.
    """
    if len(secret) < SHORTEST or secret in _lasting or secret in _transient:
        return
    if lasting:
        _lasting.add(secret)
    else:
        _transient.append(secret)
    _rebuild()


def forget(secret: str) -> None:
    """Stop looking for this text."""
    _lasting.discard(secret)
    if secret in _transient:
        _transient.remove(secret)
    _rebuild()


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret, to judge by the name's end."""
    return _NAME.search(name) is not None


def line(text: bytes) -> bytes:
    """The line without secrets."""
    for needle in _needles:
        if needle in text:
            text = text.replace(needle, _MASK)
    return _by_form(text) if _HINT.search(text.lower()) else text


def words(text: str) -> str:
    """The text without secrets, for messages that go another way than through the log."""
    return line(text.encode(errors="replace")).decode()


def _by_form(text: bytes) -> bytes:
    lower = text.lower()
    for hints, form, written in _FORMS:
        if any(hint in lower for hint in hints):
            text = form.sub(written, text)
    return text


def _rebuild() -> None:
    global _needles  # noqa: PLW0603 - the list is the process's, as its secrets are
    found = {form for secret in (*_lasting, *_transient) for form in _forms(secret)}
    # The longest first: one secret may be a part of another.
    _needles = tuple(sorted(found, key=lambda form: (-len(form), form)))


def _forms(secret: str) -> Iterable[bytes]:
    raw = secret.encode()
    yield raw
    yield msgspec.json.encode(secret)[1:-1]
    yield quote(secret, safe="").encode()
    yield base64.b64encode(raw)
