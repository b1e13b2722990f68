"""A certificate with its private key, and the one way into a TLS context."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from ccm.base.memfile import memory_file, path_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate chain and its private key, both PEM."""

    chain: bytes
    key: bytes = field(repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Have a context show it.

        Raises:
            ssl.SSLError: one is no PEM, or they do not belong together.
            ValueError: the key is encrypted.
        """
        # OpenSSL's binding takes files only.
        with memory_file() as chain, memory_file() as key:
            for file, content in ((chain, self.chain), (key, self.key)):
                file.write(content)
                file.flush()
            # An encrypted key must fail, not ask for a password on the terminal.
            context.load_cert_chain(path_of(chain), path_of(key), password=_no_password)


def _no_password() -> str:
    raise ValueError("an encrypted private key is not supported")
