"""What the flags about TLS may name, and what of it Python's TLS cannot do."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from ccm.serving import tls

if TYPE_CHECKING:
    from ccm.app.options import Options

PREFIXES = ("", "webhook-")
"""Of the flags of our two servers."""


def faults(options: Options) -> Iterator[tuple[str, str]]:
    """Each flag that names something unknown, and what is known."""
    for prefix in PREFIXES:
        name = f"{prefix}tls-min-version"
        minimum = cast("str", options.get(name))
        if minimum not in ("", *tls.VERSIONS):
            yield name, f"must be one of {', '.join(tls.VERSIONS)}"
        name = f"{prefix}tls-cipher-suites"
        yield from _fault(name, "", cast("tuple[str, ...]", options.get(name)), ())
        name = f"{prefix}tls-curve-preferences"
        yield from _fault(name, "", (), cast("tuple[int, ...]", options.get(name)))


def notices(options: Options) -> Iterator[str]:
    """What to say once at start about what the flags ask for and does not happen."""
    for prefix in PREFIXES:
        suites = cast("tuple[str, ...]", options.get(f"{prefix}tls-cipher-suites"))
        if any(suite in tls.SUITES_TLS13 for suite in suites):
            yield (
                f"--{prefix}tls-cipher-suites cannot choose among the suites of TLS 1.3: "
                "Python leaves all of them on, as Go does"
            )
        groups = cast("tuple[int, ...]", options.get(f"{prefix}tls-curve-preferences"))
        if len(groups) > 1 and not hasattr(ssl.SSLContext, "set_groups"):
            yield (
                f"--{prefix}tls-curve-preferences: only the first, {groups[0]}, has an effect, "
                "because this Python can set one group and no list"
            )


def _fault(
    name: str, minimum: str, suites: tuple[str, ...], groups: tuple[int, ...]
) -> Iterator[tuple[str, str]]:
    try:
        tls.policy(minimum, suites, groups)
    except tls.TlsError as error:
        yield name, str(error)
