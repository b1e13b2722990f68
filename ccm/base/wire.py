"""aiohttp, imported without reading the machine's certificate authorities.

On import aiohttp makes two TLS contexts for clients that bring none, and each reads some
140 authorities: a tenth of the CPU of a start, for contexts that a client of the API server
never uses. Here the authorities are read when such a context is first used.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TrustOnUse(ssl.SSLContext):
    """A client context that trusts the machine's authorities, read at the first connection."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection, as `ssl.SSLContext.wrap_bio` does."""
        if not self.cert_store_stats()["x509_ca"]:
            self.load_default_certs()
        return super().wrap_bio(*args, **options)


@contextmanager
def _without_authorities() -> Iterator[None]:
    """Inside, contexts are made empty: this is where all ways of loading defaults end."""
    ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths


_create = ssl.create_default_context


def _context(*args: Any, **options: Any) -> ssl.SSLContext:
    """Make the context of `ssl.create_default_context`, still without authorities."""
    with _without_authorities():
        context = _create(*args, **options)
    context.__class__ = TrustOnUse
    return context


ssl.create_default_context = _context
try:
    import aiohttp
finally:
    ssl.create_default_context = _create

from aiohttp.http_exceptions import HttpProcessingError  # noqa: E402 - after the package


def reason(error: BaseException) -> str:
    """What went wrong on the wire, for people: aiohttp's words tell of TLS where there is none."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    elif isinstance(error, aiohttp.ClientHttpProxyError):
        return f"HTTP {error.status} {error.message}"
    elif isinstance(error, HttpProcessingError):
        # A picture of the place in several lines, with a status that nobody answered.
        return " ".join(error.message.split()).rstrip(" ^")
    if is_no_tls(error):
        return "what answers there speaks no TLS"
    number = getattr(error, "errno", None) or 0
    said = getattr(error, "strerror", None) or str(error)
    # Numbers below 0 are the resolver's, and those of the TLS library are its own.
    if number > 0 and not isinstance(error, ssl.SSLError):
        said = os.strerror(number)
    return _NUMBERS.sub("", said) or type(error).__name__


def is_no_tls(error: BaseException) -> bool:
    """Whether the other side spoke something else where TLS was begun, such as plain HTTP."""
    return isinstance(error, ssl.SSLError) and getattr(error, "reason", "") in _NO_TLS


_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")
"""What the TLS library makes of bytes that are none of its own, by its version."""

_NUMBERS = re.compile(r"\[(?:Errno -?\d+|[A-Z0-9_: ]+)\] | \(_ssl\.c:\d+\)")

__all__ = ["HttpProcessingError", "aiohttp", "is_no_tls", "reason"]
