"""aiohttp, imported without loading the system's certificate authorities.

On import, aiohttp creates two default TLS contexts, and each loads some 140 authorities. This costs
a tenth of the CPU time of the daemon's start, in vain: the client of the API server has its own TLS
context. This module defers the loading to the first use of a default context.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class LazyTrustContext(ssl.SSLContext):
    """TLS client context that loads the system's authorities at the first connection."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection, as `ssl.SSLContext.wrap_bio` does."""
        if not self.cert_store_stats()["x509_ca"]:
            self.load_default_certs()
        return super().wrap_bio(*args, **options)


@contextmanager
def _without_authorities() -> Iterator[None]:
    """Make each TLS context that is created inside the block start without authorities.

    Every way to load the default authorities calls `SSLContext.set_default_verify_paths`.
    """
    ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]  # noqa: ARG005
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths


_create = ssl.create_default_context


def _context(*args: Any, **options: Any) -> ssl.SSLContext:
    """Create the context of `ssl.create_default_context`, without authorities for now."""
    with _without_authorities():
        context = _create(*args, **options)
    context.__class__ = LazyTrustContext
    return context


ssl.create_default_context = _context
try:
    import aiohttp
finally:
    ssl.create_default_context = _create

from aiohttp.http_exceptions import HttpProcessingError  # noqa: E402 - after the package


def describe_error(error: BaseException) -> str:
    """Return why a connection failed; aiohttp's own texts mention TLS even for plain HTTP."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        error = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    elif isinstance(error, aiohttp.ClientHttpProxyError):
        return f"HTTP {error.status} {error.message}"
    elif isinstance(error, HttpProcessingError):
        # The message may have several lines and a `^` below the fault. `str(error)` would add a
        # status that no server sent.
        return " ".join(error.message.split()).rstrip(" ^")
    if is_not_tls(error):
        return "the server does not speak TLS"
    number = getattr(error, "errno", None) or 0
    text = getattr(error, "strerror", None) or str(error)
    # Only positive errno values are the system's: the resolver uses negative ones, and the TLS
    # library has its own numbers.
    if number > 0 and not isinstance(error, ssl.SSLError):
        text = os.strerror(number)
    return _NUMBERS.sub("", text) or type(error).__name__


def is_not_tls(error: BaseException) -> bool:
    """Return whether the peer spoke another protocol than TLS, such as plain HTTP."""
    return isinstance(error, ssl.SSLError) and getattr(error, "reason", "") in _NO_TLS


_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")
"""Reasons that the various versions of the TLS library give for bytes that are not TLS."""

_NUMBERS = re.compile(r"\[(?:Errno -?\d+|[A-Z0-9_: ]+)\] | \(_ssl\.c:\d+\)")

__all__ = ["HttpProcessingError", "aiohttp", "describe_error", "is_not_tls"]
