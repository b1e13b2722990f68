"""How a known secret may be written: escaped, percent-encoded, in hex, or within base64. Pure.

Each `Spelling` is found by a short probe, which every way of writing it leaves as it is; only
where the probe occurs is the whole pattern tried. Quantifiers have limits, and none can give
back what it took where another could take it: text that somebody else made costs linear time.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from functools import cache, cached_property

PROBE_BYTES = 6

_SAFE = re.compile(rb"[A-Za-z0-9]+")
_RARE = b"QZXJYVKWUHBGOFLPMDRSANTCEIzqxjkvwybgupf98h7m65dl4c3s2a1r0oniet"
"""Letters and digits, those first that are rare in lines of a log."""

_NAMED = {"\n": b"n", "\r": b"r", "\t": b"t", "\b": b"b", "\f": b"f", "\v": b"v", "\0": b"0"}
_ENTITIES = {"'": b"apos", '"': b"quot", "&": b"amp", "<": b"lt", ">": b"gt"}
_SLASHES = rb"\\{0,15}+"
"""Backslashes before a character: escaped once, or again by whoever quotes the quoted."""

_MARGIN = rb"[ \t|+]{0,40}?"
"""What the traceback of an exception group puts before each line; the secret's own spaces follow,
so that only one length of it can fit."""

_ESCAPES = re.compile(
    rb"(?:%(?:25){0,3}[0-9A-Fa-f]{2}"
    rb"|\\{1,15}+(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})"
    rb"|&#(?:[0-9]{2,7}|[xX][0-9A-Fa-f]{2,6});){5,}+"
)
ESCAPES = (rb"%[0-9A-Fa-f]{2,8}%", rb"\\[xu][0-9A-Fa-f]{2,4}\\", rb"&#")
"""Patterns of which one occurs where every character is escaped."""

_ONE_ESCAPE = re.compile(rb"(?:%(?:25){0,3}|\\+x|\\+u|&#x)(\w{2,6});?|&#(\d+);", re.IGNORECASE)


class Spelling:
    """One way to write a secret.

    Attributes:
        probe: bytes without which it cannot be there; empty: nobody knows any.
    """

    def __init__(self, text: str, probe: bytes, *, before: bytes = b"", after: bytes = b"") -> None:
        self.probe = probe
        self._text = text
        self._around = before, after

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        """All of it."""
        before, after = self._around
        # A run of backslashes is taken in pairs: the last one may belong to what follows.
        parts = re.split(r"(\\+)", self._text)
        units = (
            _BACKSLASHES if part.startswith("\\") else b"".join(map(_unit, part)) for part in parts
        )
        return re.compile(before + b"".join(units) + after)


def spellings(secret: str) -> Iterator[Spelling]:
    """Every way in which it may be written, but for each character escaped (`unescaped`)."""
    raw = secret.encode(errors="replace")
    yield Spelling(secret, _probe(raw))
    for digits in {raw.hex(), raw.hex().upper()}:
        yield Spelling(digits, _probe(digits.encode()))
    for skipped in range(3):
        # Whatever stands before it shifts it by 0, 2 or 4 bits; what is whole is looked for.
        first, last = -(-8 * skipped // 6), 8 * (skipped + len(raw)) // 6
        core = base64.b64encode(bytes(skipped) + raw)[first:last]
        ends = b"" if (skipped + len(raw)) % 3 == 0 else _BASE64_END
        before = rb"[\w+/-]?" if skipped else b""
        yield Spelling(core.decode(), _probe(core), before=before, after=ends)


def unescaped(text: bytes, secrets: Sequence[bytes], mask: bytes) -> bytes:
    """The text without those secrets where every single character of them is escaped."""

    def shown(found: re.Match[bytes]) -> bytes:
        plain = _ONE_ESCAPE.sub(_character, found[0])
        return mask if any(secret in plain for secret in secrets) else found[0]

    return _ESCAPES.sub(shown, text)


def _character(found: re.Match[bytes]) -> bytes:
    code = int(found[1], 16) if found[1] else int(found[2])
    # Bytes beyond ASCII stand for a part of a letter, where a program escaped them one by one.
    is_byte = found[0].startswith((b"%", b"\\x", b"\\\\"))
    return (
        bytes([code])
        if is_byte and code < 256
        else chr(min(code, 0x10FFFF)).encode(errors="replace")
    )


def _probe(raw: bytes) -> bytes:
    """A few letters of it that nobody escapes, and that few lines have."""
    run = max(_SAFE.findall(raw), key=len, default=b"")
    starts = range(max(1, len(run) - PROBE_BYTES + 1))
    start = min(starts, key=lambda at: _RARE.find(run[at : at + 1]))
    return run[start : start + PROBE_BYTES]


@cache
def _unit(letter: str) -> bytes:
    """A pattern for one character, however it is escaped."""
    if letter.isascii() and letter.isalnum():
        return letter.encode()
    raw, code = letter.encode(errors="replace"), ord(letter)
    ways = [re.escape(raw), *_numbered(letter, raw, code)]
    if letter in _NAMED:
        ways.append(_NAMED[letter])
    if letter in " +/":
        ways.append({" ": rb"\+", "+": b"-", "/": b"_"}[letter])
    return _SLASHES + b"(?:" + b"|".join(ways) + b")" + (_MARGIN if letter == "\n" else b"")


def _numbered(letter: str, raw: bytes, code: int) -> Iterator[bytes]:
    yield b"".join(b"%%(?:25){0,3}(?i:%02x)" % byte for byte in raw)
    yield (rb"(?:\\{1,15})?").join(b"(?i:x%02x)" % byte for byte in raw)
    units = letter.encode("utf-16-be", errors="replace")
    pairs = [units[at : at + 2].hex().encode() for at in range(0, len(units), 2)]
    yield (rb"\\{1,15}").join(b"u(?i:%b)" % pair for pair in pairs)
    yield b"(?i:&#0{0,4}%d;|&#x0{0,4}%x;)" % (code, code)
    if letter in _ENTITIES:
        yield b"&%b;" % _ENTITIES[letter]


_BACKSLASHES = (
    rb"(?:(?:\\{1,15}(?:u005[cC]|x5[cC])){1,8}+|(?:\\\\){1,15}+|\\"
    rb"|(?:%(?:25){0,3}5[cC]){1,8}+|(?:&#92;){1,8}+)"
)
_BASE64_END = rb"[\w+/-]?(?:=|%(?:25){0,3}3[dD]|\\{1,15}u003[dD]){0,2}"
