"""A configuration whose files were read once, and the list of these files.

What `config.load` returns follows its token and certificate files by itself, and takes over
whatever stands in them. Whoever wants to try a new version before the old is let go follows the
files instead, and uses what was pinned meanwhile.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Fixed, TokenFile, bearer, read_token


def files(config: ClusterConfig) -> list[Path]:
    """The files that a configuration reads beside itself; those of a program are its own."""
    tls = config.tls
    token = config.credentials.path if isinstance(config.credentials, TokenFile) else None
    parts = (
        (None, token),
        (tls.ca_data, tls.ca_file),
        (tls.cert_data, tls.cert_file),
        (tls.key_data, tls.key_file),
    )
    return [file for data, file in parts if data is None and file is not None]


def pinned(config: ClusterConfig) -> ClusterConfig:
    """The same with the content of its files as it is now; blocking.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file does not hold what it should.
    """
    material = config.tls.read()
    shown = material.certificate
    settings = replace(
        config.tls,
        ca_data=material.authorities,
        ca_file=None,
        cert_data=shown.chain if shown is not None else None,
        cert_file=None,
        key_data=shown.key if shown is not None else None,
        key_file=None,
    )
    credentials = config.credentials
    if isinstance(credentials, TokenFile):
        credentials = Fixed(bearer(read_token(credentials.path)))
    return replace(config, tls=settings, credentials=credentials)
