"""Sources of certificates (files, a directory, memory), and the names in them."""

from __future__ import annotations

import stat
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from ccm.base import clock
from ccm.base.credentials import KeyPair
from ccm.serving import tls
from ccm.serving.tls import (
    LOCAL,
    CertificateError,
    CertificateSources,
    SniCertificate,
    directory,
    files,
    memory,
)
from ccm.testing.clock import jump
from tests import pki

pytestmark = pytest.mark.virtual_time


def parsed(pair: KeyPair) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pair.chain)


@pytest.mark.row("serving-tls-01")
async def test_self_signed_certificate_is_valid_for_a_year_from_an_hour_ago() -> None:

    certificate = parsed(await memory(LOCAL)())

    now = clock.now().replace(microsecond=0)
    assert certificate.not_valid_before_utc == now - timedelta(hours=1)
    assert certificate.not_valid_after_utc == now + timedelta(days=365)


@pytest.mark.row("serving-tls-01")
@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("0.0.0.0", ("localhost", "127.0.0.1")),
        ("::", ("localhost", "127.0.0.1", "::1")),
        ("192.0.2.7", ("localhost", "127.0.0.1", "192.0.2.7")),
        ("2001:db8::7", ("localhost", "127.0.0.1", "2001:db8::7")),
        ("127.0.0.1", ("localhost", "127.0.0.1")),
    ],
)
async def test_self_signed_certificate_names_localhost_and_the_address(
    address: str, names: tuple[str, ...]
) -> None:
    pair = await memory(tls.hosts_of(ip_address(address)))()

    assert await tls.names_in(pair) == names


async def test_self_signed_certificate_is_renewed_a_month_before_expiry() -> None:
    source = memory(LOCAL)
    first = await source()

    jump(timedelta(days=334).total_seconds())
    assert await source() == first
    jump(timedelta(days=2).total_seconds())
    assert await source() != first


@pytest.mark.row("serving-tls-02")
async def test_cert_dir_gets_a_pair_that_the_next_process_reuses(tmp_path: Path) -> None:
    folder = tmp_path / "certs"

    made = await directory(folder, "daemon", LOCAL)()

    assert await directory(folder, "daemon", LOCAL)() == made
    assert (folder / "daemon.crt").read_bytes() == made.chain
    assert stat.S_IMODE((folder / "daemon.key").stat().st_mode) == 0o600


@pytest.mark.row("serving-tls-02")
@pytest.mark.parametrize("left", ["daemon.crt", "daemon.key"])
async def test_half_a_pair_in_the_cert_dir_is_an_error(tmp_path: Path, left: str) -> None:
    """The file may be the administrator's, such as a key whose certificate is not issued yet."""
    (tmp_path / left).write_text("the administrator's")

    with pytest.raises(CertificateError, match=r"only if daemon\.crt and daemon\.key are both abs"):
        await directory(tmp_path, "daemon", LOCAL)()

    assert contents(tmp_path) == {left: b"the administrator's"}


@pytest.mark.row("serving-tls-02")
async def test_file_in_the_cert_dir_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "daemon.crt").symlink_to(tmp_path / "not mounted yet")

    with pytest.raises(CertificateError, match=r"daemon\.crt cannot be read"):
        await directory(tmp_path, "daemon", LOCAL)()

    assert (tmp_path / "daemon.crt").is_symlink()
    assert not (tmp_path / "daemon.key").exists()


@pytest.mark.row("serving-tls-02")
@pytest.mark.parametrize("moved", [("crt",), ("key",), ("crt", "key")])
async def test_cert_dir_gets_no_new_pair_after_the_start(
    tmp_path: Path, moved: tuple[str, ...]
) -> None:
    """For a rotation, an administrator may move the files away for a moment."""
    source = directory(tmp_path, "daemon", LOCAL)
    first = await source()
    for ending in moved:
        (tmp_path / f"daemon.{ending}").rename(tmp_path / f"old.{ending}")
    before = contents(tmp_path)

    with pytest.raises(CertificateError, match="cannot be read"):
        await source()

    assert contents(tmp_path) == before
    for ending in moved:
        (tmp_path / f"old.{ending}").rename(tmp_path / f"daemon.{ending}")
    assert await source() == first


@pytest.mark.row("serving-tls-02")
@pytest.mark.parametrize("ending", [".crt", ".key"])
async def test_pair_is_created_again_after_a_crash_while_it_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    replace = Path.replace

    def crash(path: Path, target: Path) -> Path:
        if target.suffix == ending:
            raise OSError("crash")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(CertificateError, match="crash"):
        await directory(tmp_path, "daemon", LOCAL)()
    monkeypatch.undo()

    created = await directory(tmp_path, "daemon", LOCAL)()

    assert contents(tmp_path) == {"daemon.crt": created.chain, "daemon.key": created.key}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.row("serving-tls-07")
async def test_sni_names_default_to_those_in_the_certificate(tmp_path: Path) -> None:
    authority = pki.Authority(tmp_path, "authority")
    main = authority.server("main.example", file="main")
    other = authority.server("a.example", "*.b.example", "192.0.2.9", file="other")
    certificates = CertificateSources(
        files(main.chain, main.key), [SniCertificate(source=files(other.chain, other.key))]
    )

    loaded = await certificates.read()

    carried, others = (
        ("a.example", "A.Example.", "x.b.example", "192.0.2.9"),
        ("b.example", "", "z"),
    )
    served = [
        name
        for name in (*carried, *others)
        if loaded.for_name(name).chain == other.chain.read_bytes()
    ]
    assert served == [*carried]


@pytest.mark.row("serving-tls-07")
async def test_exact_sni_name_wins_over_a_wildcard() -> None:
    wild, exact, main = (KeyPair(chain=text, key=b"") for text in (b"wild", b"exact", b"main"))
    loaded = tls.LoadedCertificates(
        main=main, named=((("*.example",), wild), (("a.example",), exact))
    )

    assert loaded.for_name("a.example") == exact
    assert loaded.for_name("b.example") == wild
    assert loaded.for_name("c.b.example") == main


async def test_private_key_is_not_in_the_repr() -> None:
    assert "secret" not in repr(KeyPair(chain=b"chain", key=b"secret"))
