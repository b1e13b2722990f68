"""What the flags about TLS may name, and what of it Python's TLS cannot do."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence

from ccm.serving import policy


def version(value: str) -> str:
    """A name of a version, or nothing."""
    known = value in ("", *policy.VERSIONS)
    return "" if known else f"must be one of {', '.join(policy.VERSIONS)}"


def suites(value: Sequence[str]) -> str:
    """Names of cipher suites."""
    return _fault(lambda: policy.policy("", value))


def groups(value: Sequence[int]) -> str:
    """Numbers of key exchange groups."""
    return _fault(lambda: policy.policy("", (), value))


def notices(prefix: str, suites: Sequence[str], groups: Sequence[int]) -> Iterator[str]:
    """What to say once at start about what the flags of one server ask for and does not happen."""
    if any(suite in policy.SUITES_TLS13 for suite in suites):
        yield (
            f"--{prefix}tls-cipher-suites cannot choose among the suites of TLS 1.3: "
            "Python leaves all of them on, as Go does"
        )
    if len(groups) > 1 and not hasattr(ssl.SSLContext, "set_groups"):
        yield (
            f"--{prefix}tls-curve-preferences: only the first, {groups[0]}, has an effect, "
            "because this Python can set one group and no list"
        )


def _fault(read: Callable[[], object]) -> str:
    try:
        read()
    except policy.TlsError as error:
        return str(error)
    return ""
