"""TLS of a server: setting names, served certificates, and accepted clients."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from ccm.serving import policy, tls
from ccm.serving.http import Request, Response, text
from ccm.serving.tls import CertificateError, CertificateSources, KeyPairSource, SniCertificate
from tests import pki
from tests.unit.serving import test_http

AES_256 = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
REFUSED = (ssl.SSLError, ConnectionError)
"""How a client learns that TLS did not come about."""


@pytest.fixture
def authority(tmp_path: Path) -> pki.Authority:
    return pki.Authority(tmp_path, "authority")


def files(pair: pki.Files) -> KeyPairSource:
    return tls.files(pair.chain, pair.key)


def keeper(
    pair: pki.Files, *named: SniCertificate, rules: policy.TlsPolicy | None = None
) -> tls.CertReloader:
    return tls.CertReloader(
        rules or policy.parse_policy("", ()), CertificateSources(files(pair), named)
    )


async def whom(request: Request) -> Response:
    certificate: Mapping[str, Any] = request.caller.certificate or {}
    return text(f"{dict(part[0] for part in certificate.get('subject', ()))}")


@asynccontextmanager
async def serving(kept: tls.CertReloader) -> AsyncIterator[int]:
    """Run a server that returns the identity of its caller; yield its port."""
    await kept.start()
    async with test_http.serving(whom, context=kept.context) as port:
        yield port


async def call(port: int, context: ssl.SSLContext, name: str = "localhost") -> tuple[Any, str]:
    """Return the TLS connection and the response of the server."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=name
    )
    try:
        writer.write(test_http.LAST + b"\r\n")
        _, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        return writer.get_extra_info("ssl_object"), body
    finally:
        writer.close()


async def presented(port: int, context: ssl.SSLContext, name: str = "localhost") -> str:
    """Return the common name of the server's certificate."""
    secured, _ = await call(port, context, name)
    facts = dict(part[0] for part in secured.getpeercert()["subject"])
    return str(facts["commonName"])


def test_every_suite_and_group_is_known_to_openssl() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name in set(policy.SUITES.values()):
        context.set_ciphers(f"{name}:@SECLEVEL=0")
        assert name in {cipher["name"] for cipher in context.get_ciphers()}
    for name in policy.GROUPS.values():
        context.set_ecdh_curve(name)


@pytest.mark.row("serving-tls-04")
@pytest.mark.parametrize(
    ("minimum", "suites", "groups", "told"),
    [
        ("TLS1.2", (), (), "'TLS1.2' is unknown; known: VersionTLS10, VersionTLS11"),
        ("", ("TLS_AES_128_GCM_SHA256", "X"), (), "'X' is unknown; known: TLS_AES_128"),
        ("", (), (29, 4588), "group 4588 is unknown; known: 23 \\(prime256v1\\)"),
    ],
)
def test_unknown_tls_setting_lists_the_known_ones(
    minimum: str, suites: tuple[str, ...], groups: tuple[int, ...], told: str
) -> None:
    with pytest.raises(policy.TlsError, match=told):
        policy.parse_policy(minimum, suites, groups)


def of_tls_12(context: ssl.SSLContext, suites: str = "") -> ssl.SSLContext:
    """Limit a client to TLS 1.2, where a refusal happens during the handshake."""
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    if suites:
        context.set_ciphers(suites)
    return context


@pytest.mark.parametrize(
    ("minimum", "suites", "offered", "agreed"),
    [
        ("VersionTLS12", (AES_256,), "", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        ("VersionTLS12", (AES_256,), "ECDHE-ECDSA-AES128-GCM-SHA256", None),
        ("VersionTLS12", (), "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("VersionTLS13", (), "", None),
    ],
    ids=["its suite", "another suite", "any suite", "an older version"],
)
async def test_cipher_suites_and_minimum_version_are_enforced(
    authority: pki.Authority,
    minimum: str,
    suites: tuple[str, ...],
    offered: str,
    agreed: str | None,
) -> None:
    kept = keeper(authority.server("localhost"), rules=policy.parse_policy(minimum, suites, [24]))
    client = of_tls_12(pki.client_context(authority.file), offered)
    found = None

    async with serving(kept) as port:
        with contextlib.suppress(*REFUSED):
            secured, _ = await call(port, client)
            found = secured.cipher()[0]

    assert found == agreed


@pytest.mark.row("serving-tls-06")
async def test_http_2_is_not_negotiated(authority: pki.Authority) -> None:
    client = pki.client_context(authority.file)
    client.set_alpn_protocols(["h2", "http/1.1"])

    async with serving(keeper(authority.server("localhost"))) as port:
        secured, _ = await call(port, client)

    assert secured.selected_alpn_protocol() == "http/1.1"


@pytest.mark.row("serving-tls-07")
async def test_sni_selects_the_certificate(authority: pki.Authority) -> None:
    other = authority.server("other.example", file="other")
    kept = keeper(
        authority.server("localhost"), SniCertificate(source=files(other), names=("*.EXAMPLE",))
    )
    client = pki.client_context(authority.file)

    async with serving(kept) as port:
        assert await presented(port, client) == "localhost"
        assert await presented(port, client, "other.example") == "other.example"


@pytest.mark.row("serving-tls-03")
async def test_changed_certificate_is_served_once_its_key_matches(
    authority: pki.Authority, tmp_path: Path
) -> None:
    used = authority.server("localhost", file="used")
    client = pki.client_context(authority.file)
    client.check_hostname = False
    kept = keeper(used)

    async with serving(kept) as port:
        assert await presented(port, client) == "localhost"

        fresh = authority.server("fresh.example", file="fresh")
        shutil.copy(fresh.chain, used.chain)
        with pytest.raises(CertificateError):  # the key is still the old one
            await kept.check()
        assert await presented(port, client) == "localhost"

        shutil.copy(fresh.key, used.key)
        await kept.check()
        assert await presented(port, client) == "fresh.example"


@pytest.mark.row("serving-lookup-04")
async def test_changed_client_cas_apply_at_once(authority: pki.Authority, tmp_path: Path) -> None:
    kept = keeper(authority.server("localhost"))
    kept.trust(authority.own)
    someone = of_tls_12(authority.client("someone").context(trusts=authority.file))

    async with serving(kept) as port:
        _, known = await call(port, someone)
        kept.trust(pki.Authority(tmp_path, "others").own)
        with pytest.raises(REFUSED):
            await call(port, someone)
        kept.trust(None)
        _, unasked = await call(port, someone)

    assert "someone" in known
    assert unasked == "{}"


async def test_invalid_client_cas_keep_the_former_ones(authority: pki.Authority) -> None:
    kept = keeper(authority.server("localhost"))
    kept.trust(authority.own)
    await kept.start()
    before = kept._newest

    for _ in range(2):
        with pytest.raises(CertificateError, match="client CAs"):
            kept.trust(b"nonsense")

    assert kept._newest is before


async def test_encrypted_private_key_is_an_error(authority: pki.Authority) -> None:
    pair = authority.server("localhost")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), password=None)
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )

    with pytest.raises(CertificateError, match="certificate cannot be used"):
        await keeper(pair).start()


async def test_webhook_requires_a_certificate_of_the_client_ca_file(
    tmp_path: Path, authority: pki.Authority
) -> None:
    """The file is reloaded; an unusable one keeps the former CAs."""
    own = pki.Authority(tmp_path, "own")
    listed = tmp_path / "listed.crt"
    listed.write_bytes(authority.own)
    kept = tls.CertReloader(
        policy.parse_policy("", ()),
        CertificateSources(files(own.server("localhost"))),
        client_ca_file=listed,
    )
    nobody = of_tls_12(pki.client_context(own.file))
    known = authority.client("api-server").context(trusts=own.file)
    others = of_tls_12(own.client("other").context(trusts=own.file))

    async with serving(kept) as port:
        assert (await call(port, known))[1] == "{'commonName': 'api-server'}"
        for each in (nobody, others):
            with pytest.raises(REFUSED):
                await call(port, each)

        listed.write_bytes(b"nothing")
        with pytest.raises(CertificateError):
            await kept.check()
        assert (await call(port, known))[1] == "{'commonName': 'api-server'}"

        listed.write_bytes(own.own)
        await kept.check()
        assert (await call(port, others))[1] == "{'commonName': 'other'}"


async def test_client_certificate_is_optional(authority: pki.Authority, tmp_path: Path) -> None:
    """An intermediate CA may be trusted on its own."""
    middle = pki.Authority(tmp_path, "middle", signed_by=authority)
    kept = keeper(authority.server("localhost"))
    kept.trust(middle.own)
    someone = middle.client("someone", ["group"]).context(trusts=authority.file)

    async with serving(kept) as port:
        _, known = await call(port, someone)
        _, unknown = await call(port, pki.client_context(authority.file))

    assert "'commonName': 'someone'" in known
    assert unknown == "{}"


def test_minimum_tls_version_is_12_or_13_with_only_suites_of_tls_13() -> None:
    rules = policy.parse_policy("", (), ())

    assert rules == policy.TlsPolicy(minimum=ssl.TLSVersion.TLSv1_2, suites=(), groups=())
    assert policy.parse_policy("", ["TLS_AES_128_GCM_SHA256"]).minimum is ssl.TLSVersion.TLSv1_3
