"""Servers that storage is kept in, each started once for all tests of a worker that need it.

Those tests are of one group (`xdist_group`), so that one worker has them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from ccm.sandbox import process
from tests import pki, postgres


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A PostgreSQL server.

    Attributes:
        socket: the folder of its socket, where everybody is believed.
        port: of 127.0.0.1, with TLS and passwords only; the certificate names no other host.
        ca: who signed its certificate.
    """

    socket: Path
    port: int
    ca: Path


@pytest.fixture(scope="session")
def bucket_url() -> Iterator[str]:
    """Address of moto's S3 server."""
    from tests.contract.persistence import buckets

    with buckets.running() as url:
        yield url


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A PostgreSQL server; where there is none the test is skipped, or fails where `CI` is set."""
    folder, port = tmp_path_factory.mktemp("postgres"), process.pick_port()
    authority = pki.Authority(folder, "ca")
    with postgres.running(port=port, tls=authority.server("127.0.0.1")) as socket:
        yield Database(socket=socket, port=port, ca=authority.file)


def settings_of(
    backend: str, request: pytest.FixtureRequest, folder: Path, name: str = "store"
) -> dict[str, Any]:
    """The settings of an empty storage of one of the backends sqlite, postgres and s3."""
    unique = f"{name}{token_hex(4)}"
    if backend == "postgres":
        place = request.getfixturevalue("database")
        settings = {"host": str(place.socket), "port": place.port, "table": unique}
        return settings | {"database": "postgres", "user": postgres.USER}
    if backend == "s3":
        from tests.contract.persistence import buckets

        settings = {"endpoint": request.getfixturevalue("bucket_url"), "bucket": unique}
        buckets.request("{endpoint}/{bucket}".format(**settings), "PUT")
        for key in ("access_key_id_file", "secret_access_key_file"):
            (folder / key).write_text("some-key")
            settings[key] = str(folder / key)
        return settings | {"allow_insecure": True}
    return {"path": str(folder / name / "ccm.db")}
