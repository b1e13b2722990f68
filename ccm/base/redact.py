"""Secrets are taken out of everything before it leaves the process, whoever wrote them into it.

Two ways work together. What is known to be secret is told to `know` by whoever reads it: a
token, a password of the cloud's configuration; it is found however it is written
(`redact_spellings`). What merely looks secret is found by its form (`redact_forms`).

`line` is for the log, `words` for other ways out, and `public` for what goes to the API server,
where many can read it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from ccm.base import redact_forms
from ccm.base.redact_spellings import ESCAPES, spellings, unescaped

MASK = "[redacted]"
"""What stands in a secret's place."""

SHORTEST = 6
"""Characters that a secret must have to be looked for; a shorter one would also mask words."""

PUBLIC_BYTES = 1024
"""Longest text that goes to the API server, which takes no longer one in an Event."""

LONGEST = 16 << 10
"""Characters of a text that are looked at, as each costs time; what follows them is left out."""

HALF = 512
"""Characters that go with it, at least: half a secret may stand there, which nobody knows."""

_MASK = MASK.encode()
_CUT = "..."

_NAME = re.compile(
    r"(?i)(?:pass(?:word|wd|phrase)?|pwd|token|secret(?:[-_]?id)?|authorization"
    r"|(?:api|access|private)[-_]?key|service[-_]?account[-_.]?(?:json|key))$"
)

TRANSIENT = 8
"""How many secrets that replace each other are looked for at the same time."""

_lasting: set[str] = set()
_transient: deque[str] = deque(maxlen=TRANSIENT)


class _Known:
    """What is looked for: made when the first line needs it, again after each change.

    Attributes:
        gate: one search for all of them, as every line is looked through.
        half: characters before a cut among which a part of a secret may be.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        # The longest first: one secret may be a part of another.
        ordered = sorted(secrets, key=lambda secret: (-len(secret), secret))
        self._raw = [secret.encode(errors="replace") for secret in ordered]
        self._spellings = [spelling for secret in ordered for spelling in spellings(secret)]
        self.half = max(HALF, 2 * max(map(len, ordered), default=0))
        probes = {re.escape(spelling.probe) for spelling in self._spellings}
        self.gate = re.compile(b"|".join(sorted(probes | set(ESCAPES)))) if secrets else None

    def masked(self, text: bytes) -> bytes:
        """The text without them."""
        for spelling in self._spellings:
            if spelling.probe in text:
                text = spelling.pattern.sub(_MASK, text)
        return unescaped(text, self._raw, _MASK)


_known: _Known | None = None


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
    _change()


def forget(secret: str) -> None:
    """Stop looking for this text."""
    _lasting.discard(secret)
    if secret in _transient:
        _transient.remove(secret)
    _change()


def is_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret, to judge by the name's end."""
    return _NAME.search(name) is not None


def line(text: bytes) -> bytes:
    """A line of the log without secrets; what is quoted in it stays quoted, and JSON is JSON."""
    said = _masked(text, encoded=True)
    if said == text or not text.startswith(b"{") or _decoded(said) is not None:
        return said
    found = _decoded(text)
    return said if found is None else msgspec.json.encode(_each(found, is_hidden=False))


def words(text: str, longest: int = LONGEST) -> str:
    """The text without secrets, for messages that go another way than through the log.

    Args:
        text: what somebody said.
        longest: characters of it that are looked at; of a longer one the end is left out.
    """
    raw = text[:longest].encode(errors="replace")
    said = _masked(raw, encoded=False).decode(errors="replace")
    if len(text) <= longest:
        return said
    return said[: -_looked_for().half][: longest - len(_CUT)] + _CUT


def public(text: str) -> str:
    """What somebody else said, for the API server: without secrets, at most `PUBLIC_BYTES`.

    Secrets go first: half of one would not be known again.
    """
    said = words(text)
    if len(said) * 4 <= PUBLIC_BYTES or len(raw := said.encode()) <= PUBLIC_BYTES:
        return said
    return raw[: PUBLIC_BYTES - len(_CUT)].decode(errors="ignore") + _CUT


def _decoded(line: bytes) -> Any:
    """What a line of JSON says; None: it is none."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError):
        return None


def _each(value: Any, *, is_hidden: bool) -> Any:
    """The decoded value with each text in it masked, or all of them below a secret's name."""
    if isinstance(value, dict):
        return {
            words(name): _each(one, is_hidden=is_hidden or is_secret(name))
            for name, one in value.items()
        }
    if isinstance(value, list):
        return [_each(one, is_hidden=is_hidden) for one in value]
    if value is None or isinstance(value, bool):
        return value
    if is_hidden and value != "":
        return MASK
    if isinstance(value, str):
        return words(value, len(value))
    said = msgspec.json.encode(value).decode()
    return value if words(said) == said else MASK


def _looked_for() -> _Known:
    global _known  # noqa: PLW0603 - the list is the process's, as its secrets are
    known = _known
    if known is None:
        known = _known = _Known([*_lasting, *_transient])
    return known


def _masked(text: bytes, *, encoded: bool) -> bytes:
    known = _looked_for()
    if known.gate is not None and known.gate.search(text):
        text = known.masked(text)
    if redact_forms.HINT.search(text.lower()):
        text = redact_forms.masked(text, _MASK, encoded=encoded)
    return text


def _change() -> None:
    global _known  # noqa: PLW0603 - the list is the process's, as its secrets are
    _known = None
