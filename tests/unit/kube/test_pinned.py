"""A configuration whose files were read once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ccm.kube import pinned
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import Fixed, TokenFile, bearer
from ccm.kube.tls import TlsSettings
from tests.unit.kube.wire import CERTS


def config(folder: Path, **settings: Path) -> ClusterConfig:
    (folder / "token").write_text("first-token")
    return ClusterConfig(
        server="https://x",
        credentials=TokenFile(folder / "token"),
        tls=TlsSettings(**settings),  # type: ignore[arg-type]
    )


async def test_what_is_pinned_stays_when_the_files_change(tmp_path: Path) -> None:
    for name in ("authority-one.pem", "client-a.pem", "client-a.key.pem"):
        shutil.copy(CERTS / name, tmp_path)
    given = config(
        tmp_path,
        ca_file=tmp_path / "authority-one.pem",
        cert_file=tmp_path / "client-a.pem",
        key_file=tmp_path / "client-a.key.pem",
    )
    before = given.tls.read()

    found = pinned.pinned(given)
    for file in pinned.files(given):
        file.write_text("something else")

    assert {file.name for file in pinned.files(given)} == {
        *("token", "authority-one.pem", "client-a.pem", "client-a.key.pem")
    }
    assert found.tls.read() == before
    assert await found.credentials.current() == bearer("first-token")
    assert pinned.files(found) == []


async def test_data_and_other_credentials_are_left_as_they_are() -> None:
    given = ClusterConfig(
        server="https://x",
        credentials=Fixed(bearer("t")),
        tls=TlsSettings(ca_data=b"-----BEGIN", ca_file=Path("never-read"), server_name="y"),
    )

    found = pinned.pinned(given)

    assert pinned.files(given) == []
    assert found.credentials is given.credentials
    assert (found.tls.ca_data, found.tls.server_name) == (b"-----BEGIN", "y")


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    given = config(tmp_path, ca_file=tmp_path / "none")

    with pytest.raises(OSError, match="none"):
        pinned.pinned(given)
