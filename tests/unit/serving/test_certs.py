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
from ccm.serving.tls import LOCAL, CertificateSources, SniCertificate, directory, files, memory
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
async def test_incomplete_pair_in_the_cert_dir_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "daemon.crt").write_text("left over")

    made = await directory(tmp_path, "daemon", LOCAL)()

    assert (tmp_path / "daemon.crt").read_bytes() == made.chain


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
