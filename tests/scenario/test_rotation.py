"""Credentials are exchanged under load: no reconcile fails, whether the new ones work or not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ccm.sandbox import realserver
from tests import servers
from tests.faults import FaultProxy, Match
from tests.scenario import harness
from tests.scenario.harness import Daemon, Stage

USED = "changed file is in use"
REFUSED = "changed file cannot be used, the old stays"
FAILED = (
    "reconcile failed",
    "cloud or API server unavailable",
    "pass failed",
    "cannot follow the API server",
    "cannot take or renew the lease",
)
WITHIN_S = 30.0
SETTINGS = ("kubeconfig", "cloud-config")


@contextlib.asynccontextmanager
async def under_load(stage: Stage, daemon: Daemon) -> AsyncIterator[None]:
    """New nodes all the time; in the end all of them are initialised, and nothing has failed."""
    stop = asyncio.Event()
    names: list[str] = []

    async def load() -> None:
        while not stop.is_set():
            names.append(f"node-{len(names)}")
            await stage.node(names[-1])
            await asyncio.sleep(0.05)

    busy = asyncio.get_running_loop().create_task(load())
    try:
        yield
    finally:
        stop.set()
        await busy
    await stage.cluster.initialised(*names, within_s=WITHIN_S)
    assert [line for line in daemon.lines() if line["msg"].startswith(FAILED)] == []


def write_kubeconfig(path: Path, url: str, **user: str) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))


def credentials_sent(wire: FaultProxy, since: int) -> set[str]:
    """The last words of the Authorization headers of requests after the first so many."""
    found = wire.requests(Match(where=lambda one: "authorization" in one.headers))[since:]
    return {one.headers["authorization"].rpartition(" ")[2] for one in found}


@pytest.mark.row("daemon-reload-01", "daemon-reload-02")
@pytest.mark.timeout(180)
@pytest.mark.both_servers
async def test_tokens_are_exchanged_under_load(stage: Stage) -> None:
    """In the files that configurations name, and in the configurations themselves."""
    wire = await stage.new_wire()
    kubeconfig, kube_token = stage.folder / "rotated.kubeconfig", stage.folder / "kube-token"
    cloud_token = stage.folder / "cloud-token"
    kube_token.write_text(stage.token)
    cloud_token.write_text(stage.cloud.token)
    write_kubeconfig(kubeconfig, wire.url, tokenFile=str(kube_token))
    stage.configure_cloud(token="", token_file=str(cloud_token))
    stage.cloud.next_token = "fresh"
    daemon = await stage.start(kubeconfig=kubeconfig, wire=wire, flags={"v": "4"})
    await daemon.says("became leader", within_s=WITHIN_S)

    async def both(outcome: str, change: Callable[[], None], *, times: int) -> None:
        change()
        for setting in SETTINGS:
            await daemon.says(outcome, setting=setting, count=times, within_s=WITHIN_S)
        await asyncio.sleep(0.3)

    def broken_files() -> None:
        kube_token.write_text("wrong")
        cloud_token.write_text("wrong")

    def good_files() -> None:
        kube_token.write_text(stage.server.token)
        cloud_token.write_text("fresh")

    def broken_configurations() -> None:
        write_kubeconfig(kubeconfig, wire.url, token="wrong")
        stage.configure_cloud(token="wrong")

    def good_configurations() -> None:
        write_kubeconfig(kubeconfig, wire.url, token=stage.token)
        stage.configure_cloud(token="fresh", timeout="4s")

    async with under_load(stage, daemon):
        await both(REFUSED, broken_files, times=1)
        await both(USED, good_files, times=1)
        # The old one is not valid any more, and nobody has kept it.
        stage.cloud.token, stage.cloud.next_token = "fresh", ""
        seen = len(wire.requests(Match()))
        await both(REFUSED, broken_configurations, times=2)
        assert credentials_sent(wire, seen) == {stage.server.token, "wrong"}
        await both(USED, good_configurations, times=2)

    reasons = [
        event["reason"]
        for event in await stage.cluster.events("cloud-controller-manager")
        if event["reason"].startswith("Config")
    ]
    assert sorted(set(reasons)) == ["ConfigRejected", "ConfigReloaded"]
    assert await daemon.stop() == 0


class Authority:
    """Signs client certificates."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name)
        self.certificate = self._sign(self._name, self._key, authority=True)

    def issue(self, user: str, chain: Path, key: Path) -> None:
        """Write a certificate and a key, one after the other as people do."""
        private = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(user, realserver.ADMIN_GROUP)
        chain.write_bytes(self._sign(subject, private, authority=False))
        key.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool
    ) -> bytes:
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            usage = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH])
            made = made.add_extension(usage, critical=False)
        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _subject(name: str, group: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if group:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)


@pytest.mark.row("daemon-reload-03")
@pytest.mark.envtest
@pytest.mark.timeout(180)
async def test_client_certificates_are_exchanged_under_load(tmp_path: Path) -> None:
    """The server knows us by the new one, and never sees us without a good one."""
    ours, others = Authority("ours"), Authority("others")
    (tmp_path / "clients.pem").write_bytes(ours.certificate)
    files = {"client-certificate": tmp_path / "chain.pem", "client-key": tmp_path / "key.pem"}
    ours.issue("first", *files.values())
    audit = tmp_path / "audit.log"
    async with (
        realserver.open_real_apiserver(
            servers.require_assets(),
            tmp_path / "server",
            audit_log=audit,
            extra_args=[f"--client-ca-file={tmp_path / 'clients.pem'}"],
        ) as server,
        harness.open_stage(server, tmp_path) as stage,
    ):
        kubeconfig = tmp_path / "rotated.kubeconfig"
        cluster = {"server": server.url, "certificate-authority": str(server.ca_file)}
        write_kubeconfig(kubeconfig, server.url, **{key: str(path) for key, path in files.items()})
        document = json.loads(kubeconfig.read_text())
        document["clusters"][0]["cluster"] = cluster
        kubeconfig.write_text(json.dumps(document))
        daemon = await stage.start(kubeconfig=kubeconfig, flags={"v": "4"})
        await daemon.says("became leader", within_s=WITHIN_S)

        async with under_load(stage, daemon):
            ours.issue("second", *files.values())
            await daemon.says(USED, setting="kubeconfig", within_s=WITHIN_S)
            others.issue("third", *files.values())
            await daemon.says(REFUSED, setting="kubeconfig", within_s=WITHIN_S)
            await asyncio.sleep(0.5)
        assert await daemon.stop() == 0

    entries = [json.loads(line) for line in audit.read_text().splitlines()]
    writers = [
        entry["user"]["username"]
        for entry in entries
        if entry.get("userAgent", "").startswith("cloud-controller-manager/")
        and entry["verb"] in ("create", "update", "patch")
    ]
    assert set(writers) == {"first", "second"}
    assert writers[-1] == "second"
