"""Secrets that are recognised by their form. Pure.

1. headers `Authorization` and `Cookie`, and `Bearer x` or `Basic x` anywhere
2. user and password in a URL
3. values after a name: `password=x`, `"apiToken": "x"`, `--token x`, `<password>x</password>`
4. JSON web tokens
5. private keys in PEM
6. bootstrap tokens

A plain word after a name is left alone where it belongs to a sentence (`token: expired at noon`)
or follows the name of an object (`m-nosecret: Running`). Names are in the singular:
`tokens: 5` is a count.

Text may be quoted in text, so a quote may have backslashes before it. In a line of the log
(`encoded`) a quote without one ends a string, and no value goes beyond it. Repetitions are bounded
or possessive: the time is linear in the length of the text.
"""

from __future__ import annotations

import re
from functools import cache

_SEPARATOR = (
    rb"(?:\\{0,15}+[\"'])?(?>[ \t]{0,8}+(?>=>|:=|==?|:(?!//)|%(?:25){0,3}3[ad])[ \t]{0,8}+|>)"
    rb"(?:\[(?!redacted\]))?+"
)
"""Between a name and its value."""

_UNMASKED = rb"(?!\[redacted\]|\|)"  # nor the head of a block of YAML
_PLAIN = rb"[^\s\0\"'\\&,;<>)\]}]++"
_LITERAL = rb"(?!(?:true|false|null|nil|none)(?![\w-]))"
_PROSE = rb"(?<=[ ])[a-z][a-z./-]{0,40}+(?:[ ][\w(/<\[\"'-]|:(?:\s|\Z))"
"""A word of letters and the next one, or a colon: a sentence."""

# --- headers ----------------------------------------------------------------------------------

_SCHEME = (
    rb"(?:basic|bearer|token|digest|negotiate|ntlm|oauth|hawk|(?:api|shared)[-_]?key|ssws|aws"
    rb"|[a-z0-9]{1,9}-hmac-[a-z0-9]{1,9})[ ]{1,8}+"
)
_PARTS = rb"[^\s\0\"'\\]++(?:(?<=[,;])[ ][^\s\0\"'\\]++)*+"
"""`a=b; c=d`: a word, and the next one after a comma or a semicolon."""

_AUTHENTICATION = re.compile(
    # Not sentences such as "basic authentication" and "bearer tokens".
    rb"(\b(?i:bearer|basic)[ ]{1,8}+)(?=[\w.~+/=-]{0,80}?[\d.+/=A-Z_-])[\w.~+/=-]{6,}+"
)

# --- URLs -------------------------------------------------------------------------------------

_USER_INFO = re.compile(
    # The password may have slashes, but it may not look like a port.
    rb"(://)"
    rb"(?:(?![^\s/@:?#\[\"'\\]{0,255}+:\d{1,5}(?:[/?#\s]|$))"
    rb"[^\s/@:?#\[\"'\\]{0,255}+:(?:(?!://)[^\s@\"'\\])*+|[^\s/@:?#\[\"'\\]{1,512}+)"
    rb"(?=@)(?:@[^\s@\"'\\/?#,]{1,255}+(?=@))*+"
)

# --- values after a name ----------------------------------------------------------------------

_NAME = (
    rb"(?:passw(?:or)?d|passphrase|pwd|(?:admin|db|root|user)[-_]?pass|token|secret(?:[-_]?id)?"
    rb"|credential|signature|(?<=[?&])sig"
    rb"|(?:api|auth|access|account|client|encryption|private|secret|shared|signing)[-_]?key)"
)

_COLON = re.compile(rb"[a-z]:[ ]\Z")
_BEFORE = re.compile(rb"[\w./-]{0,127}\Z")
_WORD = re.compile(rb"[A-Za-z]{1,24}\Z")

# --- forms of their own -----------------------------------------------------------------------

_JWT = re.compile(rb"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]++\.[\w-]*+")

_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    rb"(?:[^\"'\\-]|\\++(?![\"'])|-(?!----END ))*+(?:-----END [A-Z ]{0,60}-----)?"
)

_BOOTSTRAP_TOKEN = re.compile(
    # A host name such as `worker.examplehostname1` has this form too. In a random token a digit
    # stands before a letter, but for one in 500; in names digits come last.
    rb"(?:(?<![\w.-])|(?<=\\[nrt]))(?=[a-z0-9.]{0,21}[0-9][a-z])"
    rb"[a-z0-9]{6}\.[a-z0-9]{16}(?![\w-]|\.\w)"
)
_ITS_SECRET = re.compile(rb"\.[a-z0-9]{16}(?![\w-])")
"""Begins with a literal, so that most lines are looked through fast."""


def masked(text: bytes, mask: bytes, *, encoded: bool) -> bytes:
    """Return a text without secrets that have a known form.

    Args:
        text: a line of the log, or any other text.
        mask: stands in a secret's place.
        encoded: a quote without a backslash begins or ends a string of the line.
    """
    after = rb"\g<1>" + mask
    # Substrings of a str are found several times faster than those of bytes.
    folded = text.decode("latin-1").lower()
    if "eyj" in folded:
        text = _JWT.sub(mask, text)
    if "-----begin " in folded:
        text = _PRIVATE_KEY.sub(mask, text)
    if "@" in folded and "://" in folded:
        text = _USER_INFO.sub(after, text)
    if _ITS_SECRET.search(text):
        text = _BOOTSTRAP_TOKEN.sub(mask, text)
    if "authorization" in folded or "cookie" in folded:
        text = _header(encoded).sub(after, text)
    if "bearer" in folded or "basic" in folded:
        text = _AUTHENTICATION.sub(after, text)
    if (
        "token" in folded
        or "secret" in folded
        or "pass" in folded
        or "key" in folded
        or "sig" in folded
        or "credential" in folded
        or "pwd" in folded
    ):

        def shown(found: re.Match[bytes]) -> bytes:
            return found[0] if _follows_object(text, found) else found[1] + mask

        text = _pair(encoded).sub(shown, text)
    return text


def _follows_object(text: bytes, found: re.Match[bytes]) -> bool:
    """Whether a plain word stands after the name of an object, such as `m-nosecret: Running`.

    Names of objects have lower-case letters and dashes; `x-` begins the name of a header.
    """
    name, value = found[1], found[0][len(found[1]) :]
    if not (_COLON.search(name) and _WORD.match(value)):
        return False
    before = _BEFORE.search(text[max(0, found.start() - 127) : found.start()])
    whole = (before[0] if before else b"") + name
    return b"-" in whole and whole.islower() and not whole.startswith(b"x-")


def _inner(encoded: bool) -> bytes:
    """The rest of a quoted text; its quote is the group `q`."""
    other = rb"(?:(?:\\\\){0,7}+(?:\\[\"']|'))" if encoded else rb"\\{0,15}+[\"']"
    return rb"(?:[^\"'\\]|\\{1,31}+(?![\"'\\])|(?!(?P=q))%b)++" % other


_QUOTE = rb"[bru]?(?P<q>\\{0,15}+[\"'])"


@cache
def _header(encoded: bool) -> re.Pattern[bytes]:
    plain = rb"(?:(?=%b)|(?!%b))" % (_SCHEME, _PROSE)
    return re.compile(
        rb"(?i)((?:authorization|cookie)%b(?:%b|%b)(?:%b)?+)%b%b(?(q)%b|%b)"
        % (_SEPARATOR, _QUOTE, plain, _SCHEME, _UNMASKED, _LITERAL, _inner(encoded), _PARTS)
    )


@cache
def _pair(encoded: bool) -> re.Pattern[bytes]:
    flag = rb"--[\w-]{0,60}?%b(?:\\{0,15}+[\"'],)?[ \0]{1,8}+(?!-)" % _NAME
    return re.compile(
        rb"(?i)((?:%b%b|%b)(?:%b|(?!%b|[bru]?\\{0,15}[\"'])))%b%b(?(q)%b|%b)"
        % (_NAME, _SEPARATOR, flag, _QUOTE, _PROSE, _UNMASKED, _LITERAL, _inner(encoded), _PLAIN)
    )
