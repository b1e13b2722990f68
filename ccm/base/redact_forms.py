"""What looks like a secret, whoever wrote it: by the name before it, or by its own form. Pure.

A value is masked where a name says so: `password: x`, `"apiToken": "x"`, `X-Auth-Token: x`,
`token='x'`, `--token x`, `?sig=x&`, `<password>x</password>`, or on the next line of a YAML text.
How many tokens there are, which signal came and what folder a process is in is nobody's secret.
Neither is a sentence after the name of an object: `machine m-nosecret: VM is gone`.
Beside names there are few forms: Authorization and cookies
with all their parts, user and password in a URL, `Bearer x`, JSON web tokens, private keys.

All rules hold for text within text: a quote may have any number of backslashes before it. In a
line of the log (`encoded`) a quote without one ends a text, and no rule goes beyond it, so that
the line stays one that programs can read. Every repetition is bounded, or cannot give back what
it took: the time is linear in the length of the text, whatever that says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

_OWNERS = b"(?:api|auth|access|account|client|encryption|private|secret|shared|signing)"
_NAMES = (
    b"passw(?:or)?d", b"passphrase", b"passcode", b"(?:admin|db|root|user)[-_ ]?pass",
    b"token", b"secret", b"secret[-_ ]?id", b"credential", b"signature", b"assertion",
)  # fmt: skip
"""What a name that stands before a secret ends with; each begins with a letter as it is."""

_SHORT_NAMES = (b"(?P<pwd>pwd)", b"(?P<sig>sas|sig)", b"jwt")
"""The same for words that are also a part of others; a folder and a signal are called so, too."""

# Few letters to begin with: at each of them in a line the search stops and looks closer.
HINT = re.compile(
    rb"p(?:ass(?:w|phrase|code|[\"'\\ :=%>])|wd[\"'\\ :=%>]|rivate[-_ ]?key)|token"
    rb"|s(?:ecret|hared[-_ ]?key|as[\"'\\ :=%>]|ig(?:nature|ning[-_ ]?key|[\"'\\ :=%>]))"
    rb"|c(?:redential|ookie|nonce=|lient[-_ ]?key)"
    rb"|a(?:uthorization|ssertion|(?:pi|uth|ccess|ccount)[-_ ]?key)|b(?:earer|asic) |jwt[\"'\\ :=%]"
    rb"|e(?:yj|ncryption[-_ ]?key)|-----begin |@"
)
"""Found in lower case wherever a rule fits; every line of the log is looked through for it."""

_NAME = (
    rb"(?:(?:%b)|%b[-_ ]?key|(?<![a-z])(?:%b))(?P<many>s)?"
    rb"(?:[-_ ]?(?:value|data|hash|text|string|key))?"
    % (b"|".join(_NAMES), _OWNERS, b"|".join(_SHORT_NAMES))
)
_IS = (
    rb"(?:\\{0,15}+[\"'])?[ \t]{0,8}+(?>=>|:=|==?|:(?!//)|%(?:25){0,3}3[ad])[ \t]{0,8}+"
    rb"(?:\[(?!redacted\]))?+"
)
"""Between a name and its value."""

_QUOTE = rb"[bru]?(?P<q>\\{0,15}+[\"'])"

_WORD = (
    rb"(?:an?|and|are|be|can|cannot|context|could|denied|dial|does|empty|error|expired|failed|false|file"
    rb"|for|forbidden|from|get|given|has|have|in|invalid|is|it|may|missing|must|nil|no|none|not|null"
    rb"|of|on|open|or|post|put|read|refused|rejected|required|should|stat|the|to|true"
    rb"|unauthorized|unexpected|unknown|unset|was|were|will|wrong)(?![^\s\"'\\,;:.)])"
)
"""A word with which a sentence goes on; nobody's secret."""

_END = rb"[,;)\]}>&]{0,8}+(?:[\s\0\"']|\\{1,31}+[nrt\"']|[\w.%-]{1,40}=|\Z)"
_SIGNAL = (
    rb"sig(?:abrt|alrm|bus|chld|cont|fpe|hup|ill|int|kill|pipe|quit|segv|stop|term|trap|tstp"
    rb"|usr[12]|winch)"
)
_LITERAL = rb"(?:true|false|null|none|%b)%b" % (_SIGNAL, _END)
"""A value that says whether there is a secret, not which."""

_COUNT = rb"\d{1,9}(?:\.\d{1,6})?"
_FOLDER = (
    rb"/(?:(?:app|bin|data|dev|etc|home|lib|mnt|opt|proc|root|run|srv|sys|tmp|usr|users|var"
    rb"|work(?:space)?)(?:/[\w.@+~-]{1,64}+){0,16}+/?)?"
)

_PLAIN = (
    rb"(?:\[redacted\]|[^\s\0\"'\\&,;)\]}>%]|%(?!(?:25){0,3}26)"
    rb"|[&,;)\]}>]{1,8}+(?=[^\s\0\"'\\])(?![\w.%-]{1,40}=)"
    rb"|\\{1,31}+(?![nrt\"'\\]))++"
)
"""A value without quotes: as far as there is no space, and no further `name=`."""

_SCHEME = rb"(?:bearer|basic|token|digest|negotiate|aws4-hmac-sha256)[ ]{1,8}+"
_ANY_SCHEME = rb"(?:[\w-]{2,30}+[ ]{1,8}+(?=[^\s,;:]{3}))?"


class Rule(NamedTuple):
    """One form.

    Attributes:
        pattern: its group `keep` is what stays of it; a group `flag` must end with a name.
        folded: whether it is looked for in lower case.
        needs: of these one is in the text, or the form is not.
        spares_objects: whether a sentence about an object of that name stays.
    """

    pattern: re.Pattern[bytes]
    folded: bool = True
    needs: Sequence[bytes] = ()
    spares_objects: bool = False


def masked(text: bytes, mask: bytes, *, encoded: bool) -> bytes:
    """The text without what looks secret.

    Args:
        text: a line of the log, or any text.
        mask: what is written in place of a secret.
        encoded: a quote without a backslash begins or ends a text of the line.
    """
    for rule in _rules(encoded):
        if rule.needs and not any(each in text for each in rule.needs):
            continue
        parts, done, position = [], 0, 0
        searched = text.lower() if rule.folded else text
        while found := rule.pattern.search(searched, position):
            if rule.spares_objects and _is_about_object(text, found):
                # What is said about the object may name a secret in turn.
                position = found.end("keep")
                continue
            position, flag = found.end(), found.groupdict().get("flag")
            if flag is None or _NAME_AT_END.search(flag):
                parts += [text[done : found.end("keep")], mask]
                done = position
        if parts:
            text = b"".join((*parts, text[done:]))
    return text


_NAME_AT_END = re.compile(_NAME + rb"\Z")

_HOLDERS = (
    rb"(?:access|account|admin|api|app|auth|aws|azure|basic|bearer|bind|boot(?:strap)?|client|cloud"
    rb"|consumer|csrf|database|db|default|deploy|docker|email|encryption|etcd|gcp|git|github|gitlab"
    rb"|hcloud|hetzner|hook|https?|id|idp|jwt|key|keystore|kube|ldap|login|mail|master|mysql|new"
    rb"|oauth2?|oidc|old|openstack|os|password|pg|pki|postgres|private|proxy|pull|rabbitmq|redis"
    rb"|refresh|registry|repo|root|s3|saml|secret|security|service|session|shared|signing|smtp|ssh"
    rb"|ssl|sso|stackit|storage|store|sudo|sys|system|tls|token|truststore|user|vault|web|webhook"
    rb"|xsrf)"
)
"""Words before that of a secret with which they name a field, such as `smtp-password`."""

_FIELD = re.compile(rb"(?:\A|[-/])(?:x-[a-z0-9-]{0,60}|%b)-?\Z" % _HOLDERS)
_TOKEN = re.compile(rb"[^\s\"'(\[{,;=<>]{0,127}\Z")
_OBJECT = re.compile(rb"(?:[a-z0-9-]{1,63}/)?[a-z0-9][a-z0-9-]{0,62}")
_COLON = re.compile(rb"[a-z]:[ ]{1,8}\Z")
_SENTENCE = re.compile(
    rb"[A-Za-z]{1,24}(?:\.[A-Za-z]{1,24}){0,8}"
    rb"(?::(?:\s|\Z)|[ ](?:\(|[A-Za-z][\w./-]{0,60}(?![\w./:=-])))"
)
"""A word of letters and another one: one alone may be a secret, and so may one with digits."""

_NO = re.compile(rb"(?:\A|[-/])no-?\Z")
_WORD_ALONE = re.compile(rb"[A-Za-z]{1,24}(?:[\s,;)]|\Z)")


def _is_about_object(text: bytes, found: re.Match[bytes]) -> bool:
    """Whether the name ends that of an object, and the value begins a sentence about the object.

    Unlike a field's, the name has neither capitals, dots nor underscores, and more than one word.
    """
    keep, value = text[found.start() : found.end("keep")], found.end("keep")
    if not (keep.islower() and _COLON.search(keep)):
        return False
    # The object's name has 63 bytes at most, and so has its namespace.
    token = _TOKEN.search(text[max(0, found.start() - 128) : found.start()])
    before = token[0] if token else b""
    if not _OBJECT.fullmatch(before) or _FIELD.search(before):
        return False
    return bool(
        _SENTENCE.match(text, value) or (_NO.search(before) and _WORD_ALONE.match(text, value))
    )


@cache
def _rules(encoded: bool) -> Sequence[Rule]:
    # Compiled when a line needs them: the daemon may never do.
    other = rb"(?:(?:\\\\){0,7}+(?:\\[\"']|'))" if encoded else rb"\\{0,15}+[\"']"
    inner = rb"(?:[^\"'\\]|\\{1,31}+(?![\"'\\])|(?!(?P=q))%b)++" % other
    any_value = rb"(?:[^\"'\\-]|\\{1,31}+(?![\"'\\])|%b|-(?!----END ))*+" % other
    in_line = rb"(?:[^\n\"'\\]|\\{1,31}+(?![n\"'\\])|%b)" % other
    return (
        Rule(
            re.compile(
                rb"(?P<keep>)-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----%b"
                rb"(?:-----END [A-Z ]{0,60}-----)?" % any_value
            ),
            folded=False,
        ),
        *_headers(inner, b"{1,15}+" if encoded else b"{0,15}+"),
        Rule(
            re.compile(
                rb"(?P<keep>\b(?i:bearer|basic)[ ]{1,8}+)(?=[\w.~+/=-]{0,80}?[\d.+/=A-Z_-])"
                rb"[\w.~+/=-]{6,}+"
            ),
            folded=False,
        ),
        Rule(re.compile(_USER_INFO)),
        *_below(in_line),
        *_named(inner),
        _element(other),
        Rule(re.compile(rb"(?P<keep>\b(?:c?nonce|response)=\\{0,15}+[\"']?)[0-9a-f]{16,}+")),
        Rule(re.compile(rb"(?P<keep>)(?<![\w-])eyJ[\w-]{8,}+\.[\w-]++\.[\w-]*+"), folded=False),
    )


def _headers(inner: bytes, slashes: bytes) -> Sequence[Rule]:
    """Authorization and cookies, which have parts."""
    header = rb"(?:authorization|cookie)" + _IS
    part = rb"(?:[\w.-]{1,40}=\\%b\"[^\"\\]*+\\%b\"|%b)" % (slashes, slashes, _PLAIN)
    parts = rb"%b(?:[ ]?[,;][ ]{0,8}+(?=[\w.-]{1,40}=)%b)*+" % (part, part)
    scheme = rb"(?P<s>%b)?+" % _SCHEME
    quoted = rb"(?P<keep>%b%b%b)%b" % (header, _QUOTE, scheme, inner)
    no_word = rb"(?!%b|%b)" % (_WORD, _LITERAL)
    plain = rb"(?P<keep>%b%b)%b(?(s)|%b)%b" % (header, scheme, no_word, _ANY_SCHEME, parts)
    return Rule(re.compile(quoted)), Rule(re.compile(plain))


def _named(inner: bytes) -> Sequence[Rule]:
    """Values after a name that says secret."""
    flag = rb"--(?P<flag>[\w-]{1,60}+)(?:\\{0,15}+[\"'],)?[ \0]{1,8}+(?!-)"
    pair = rb"\([bru]?\\{0,15}+[\"'][\w-]{0,40}%b\\{0,15}+[\"'],[ ]?" % _NAME
    no_word = rb"(?:(?<![ ])|(?<=[=>][ ])|(?!%b))(?!%b)" % (_WORD, _LITERAL)
    no_word += _unlike_others(_END)
    quoted = _QUOTE + _unlike_others(rb"(?P=q)")
    # The head of a block of YAML; its lines are masked as they are.
    no_text = rb"(?!\{|[bru]?\\{0,15}[\"']|[|>][-+1-9]{0,2}[\s\\])"
    plain = rb"(?P<keep>%b%b)%b%b%b" % (_NAME, _IS, no_word, no_text, _PLAIN)
    others = (
        rb"(?P<keep>%b%b)%b" % (pair, _QUOTE, inner),
        rb"(?P<keep>%b%b)%b" % (flag, _QUOTE, inner),
        rb"(?P<keep>%b)(?!%b)%b" % (flag, _WORD, _PLAIN),
    )
    return (
        Rule(re.compile(rb"(?P<keep>%b%b%b)%b" % (_NAME, _IS, quoted, inner))),
        Rule(re.compile(plain), spares_objects=True),
        *(Rule(re.compile(form)) for form in others),
    )


def _unlike_others(end: bytes) -> bytes:
    """No number after a name of many, and no folder or signal after a name that may be one's."""
    signal = rb"(?:%b|%b)" % (_COUNT, _SIGNAL)
    others = ((b"many", _COUNT), (b"pwd", _FOLDER), (b"sig", signal))
    return b"".join(rb"(?(%b)(?!%b%b))" % (name, value, end) for name, value in others)


_LINE_ENDS = (b"\n", b"\\n")


def _below(in_line: bytes) -> Sequence[Rule]:
    """Values on the lines after a name: one word, or a block of YAML as far as it is indented."""
    is_, end = rb"(?:\\{0,15}+[\"'])?:[ ]{0,8}+", rb"(?:\r?\n|(?:\\{1,15}r)?\\{1,15}n)"
    block = rb"[|>][-+1-9]{0,2}+[ ]{0,8}+%b(?P<by>[ ]{1,40}+)" % end
    lines = rb"%b++(?:%b++(?P=by)%b*+)*+" % (in_line, end, in_line)
    word = rb"(?!-[ ]|%b|%b)(?:(?![ \t])%b)++(?<![:{[])(?=%b|[\"']|\Z)"
    return (
        Rule(re.compile(rb"(?P<keep>%b%b%b)%b" % (_NAME, is_, block, lines)), needs=_LINE_ENDS),
        Rule(
            re.compile(
                rb"(?P<keep>%b%b%b[ ]{1,40}+)%b"
                % (_NAME, is_, end, word % (_WORD, _LITERAL, in_line, end))
            ),
            needs=_LINE_ENDS,
        ),
    )


def _element(other: bytes) -> Rule:
    """The text of an XML element, in whichever way its angle brackets are escaped."""
    starts, ends = rb"(?:<|\\{1,15}u003c|&lt;)", rb"(?:>|\\{1,15}u003e|&gt;)"
    attributes = rb"(?:[ ](?:(?!&gt;)[^<>\"'\\]|\\{1,15}+(?!u003e|[\"'\\])|%b){0,200}+)?" % other
    # It ends at the next bracket of either kind: nothing is looked through twice.
    text = rb"(?:(?!&[lg]t;|\]\]>)[^<>\"'\\]|\\{1,31}+(?!u003[ce]|[\"'\\])|%b)++(?:\]\]>)?" % other
    cdata = rb"(?:%b!\[cdata\[)?+" % starts
    return Rule(
        re.compile(
            rb"(?P<keep>%b%b%b%b)(?!\s{0,80}+%b)%b(?=%b/)"
            % (_NAME, attributes, ends, cdata, starts, text, starts)
        ),
        needs=(b"<", b"&lt;", b"u003c", b"u003C"),
    )


_USER_INFO = (
    rb"(?P<keep>://)"
    rb"(?:(?![^\s/@:?#\[\"'\\]{0,255}+:\d{1,5}(?:[/?#\s]|$))"
    rb"[^\s/@:?#\[\"'\\]{0,255}+:(?:(?!://)[^\s@\"'\\])*+|[^\s/@:?#\[\"'\\]{1,512}+)"
    rb"(?=@)(?:@[^\s@\"'\\/?#,]{1,255}+(?=@))*+"
)
"""`user:password@`: the password may have slashes, but that of a port it may not look like."""
