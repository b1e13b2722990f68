"""Kubeconfig settings are applied or refused by name; none is ignored silently."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ccm.base import redact
from ccm.kube import config, credentials
from ccm.kube.config import ClusterConfig, ClusterConfigError
from ccm.kube.credentials import Credential, TlsSettings
from tests.unit.kube.proxy import CERTS

V1 = "client.authentication.k8s.io/v1"
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def _data(name: str) -> str:
    return base64.b64encode((CERTS / name).read_bytes()).decode()


def _exec(**section: Any) -> dict[str, Any]:
    """Return a kubeconfig user with an exec plugin."""
    return {"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Never", **section}}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """Create the service account folder of a Pod."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text("pod-token\n")
    (folder / "ca.crt").write_bytes((CERTS / "authority-one.pem").read_bytes())
    (folder / "namespace").write_text("kube-system\n")
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a kubeconfig with one context."""

    def write(*, name: str = "config", label: str = "main", **parts: dict[str, Any]) -> str:
        place = {"cluster": "c", "user": "u", **parts.get("context", {})}
        cluster = {"server": "https://api:6443", **parts.get("cluster", {})}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": label,
            "contexts": [{"name": label, "context": place}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": parts.get("user", {})}],
        }
        path = tmp_path / name
        path.write_text(yaml.safe_dump(content))
        return str(path)

    return write


async def _header(found: ClusterConfig) -> str | None:
    return (await found.credentials.current()).header


@pytest.mark.parametrize("content", [None, "", "\n", "two lines\nno", "caf\xe9"])
def test_in_cluster_config_requires_a_valid_token_file(account: Path, content: str | None) -> None:
    (account / "token").unlink()
    if content is not None:
        (account / "token").write_text(content)

    with pytest.raises(ClusterConfigError, match=r"serviceaccount/token"):
        config.load(environ=POD, service_account=account)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_in_cluster_config_without_ca_trusts_the_system_cas(
    account: Path, content: str | None
) -> None:
    (account / "ca.crt").unlink()
    if content is not None:
        (account / "ca.crt").write_text(content)

    assert config.load(environ=POD, service_account=account).tls.authorities is None


async def test_master_flag_alone_connects_anonymously() -> None:
    found = config.load("", "127.0.0.1:8080", environ={})

    assert found.server == "http://127.0.0.1:8080"
    assert await _header(found) is None


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({}, None),
        ({"token": "abc"}, "Bearer abc"),
        ({"username": "u", "password": "p"}, "Basic dTpw"),
    ],
    ids=["nobody", "token", "basic"],
)
async def test_kubeconfig_user_becomes_the_authorization_header(
    write: Any, user: dict[str, str], header: str
) -> None:
    found = config.load(write(user=user, context={"namespace": "team"}))

    assert found.server == "https://api:6443"
    assert found.namespace == "team"
    assert not found.disable_compression
    assert await _header(found) == header


async def test_token_file_overrides_token(write: Any, tmp_path: Path) -> None:
    (tmp_path / "tok").write_text("  from-file \r\n\n")

    found = config.load(write(user={"tokenFile": "tok", "token": "inline"}))

    assert await _header(found) == "Bearer from-file"


@pytest.mark.parametrize("files", [{"client-a.pem", "client-a.key.pem"}, set()])
def test_client_certificate_is_read_from_files_or_inline_data(
    write: Any, tmp_path: Path, files: set[str]
) -> None:
    for name in files:
        (tmp_path / name).write_bytes((CERTS / name).read_bytes())
    named = {"client-certificate": "client-a.pem", "client-key": "client-a.key.pem"}
    inline = {f"{field}-data": _data(name) for field, name in named.items()}

    found = config.load(write(user=named if files else inline))

    assert found.tls.certificate is not None
    assert found.tls.certificate.chain == (CERTS / "client-a.pem").read_bytes()
    assert {path.name for path in found.files} == files


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("cluster", "proxy-url", "http://proxy"),
        ("cluster", "surprise", "x"),
        ("context", "surprise", "x"),
        ("user", "as", "admin"),
        ("user", "as-groups", ["system:masters"]),
        ("user", "as-uid", "1"),
        ("user", "as-user-extra", {"a": ["b"]}),
        ("user", "auth-provider", {"name": "oidc"}),
        ("user", "impersonate", "x"),
    ],
)
def test_unsupported_kubeconfig_settings_are_refused(
    write: Any, part: str, field: str, value: Any
) -> None:
    path = write(**{part: {field: value}})

    with pytest.raises(ClusterConfigError) as caught:
        config.load(path)

    name = {"cluster": "cluster 'c'", "context": "context 'main'", "user": "user 'u'"}[part]
    assert str(caught.value) == f"{path}: {name}: {field}: is not supported"


@pytest.mark.parametrize(
    ("part", "fields", "words"),
    [
        ("cluster", {"server": ""}, "cluster 'c': server: is not set"),
        ("cluster", {"server": "ftp://x"}, "not the URL of a server"),
        ("cluster", {"server": "https://x:port"}, "not the URL of a server"),
        (
            "cluster",
            {"server": "https://u:hunter2@x"},
            r"server: the URL contains .* \(not shown\)",
        ),
        ("cluster", {"server": 5}, "server: must be a string"),
        ("cluster", {"insecure-skip-tls-verify": "yes"}, "must be true or false"),
        (
            "cluster",
            {"certificate-authority": "nowhere.pem"},
            "nowhere.pem cannot be read: No such",
        ),
        ("cluster", {"certificate-authority-data": "?"}, "authority-data: is not base64"),
        ("cluster", {"certificate-authority-data": "Tm9wZQ=="}, "no certificate found"),
        (
            "cluster",
            {"insecure-skip-tls-verify": True, "certificate-authority-data": "Tm9wZQ=="},
            "conflicts with certificate-authority",
        ),
        ("user", {"client-certificate-data": "Tm9wZQ=="}, "must be set together"),
        (
            "user",
            {"client-certificate-data": "Tm9wZQ==", "client-key-data": "Tm9wZQ=="},
            "user 'u': client-certificate: cannot be used with client-key: not valid PEM$",
        ),
        ("user", {"tokenFile": "nowhere"}, "tokenFile: .*nowhere: No such file or directory$"),
        ("user", {"token": "hunter2\nb"}, "user 'u': token: must be one line .* it has 9 bytes$"),
        ("user", {"token": "x" * 300_000}, "user 'u': token: must .* it has 300000 bytes$"),
        ("user", {"username": "u", "password": "x" * 300_000}, "user 'u': password: must .* has"),
        ("user", {"username": "u", "token": "t"}, "conflicts with token; set only one of them"),
        ("user", {"exec": "run"}, "exec: must be a mapping"),
        ("context", {"cluster": "other"}, "cluster 'other' does not exist"),
        ("context", {"user": "other"}, "user 'other' does not exist"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_invalid_kubeconfig_field_is_named(
    write: Any, part: str, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(ClusterConfigError, match=words):
        config.load(write(**{part: fields}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "v1alpha1"),
        ({"interactiveMode": "Always"}, "no terminal"),
        ({"interactiveMode": None}, "must be set"),
        ({"interactiveMode": "Maybe"}, "unknown"),
        ({"command": ""}, "command: is not set"),
        ({"args": [1]}, "args: must be strings"),
        ({"args": "x"}, "args: must be a list"),
        ({"env": [{"name": "A"}]}, "env: must be a list of name and value"),
        ({"env": [{"name": "TOKEN", "value": "x" * 300_000}]}, "env: TOKEN must .* has 300000$"),
        ({"surprise": 1}, "surprise: is not supported"),
    ],
)
def test_invalid_exec_section_is_named(write: Any, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ClusterConfigError, match=f"user 'u': exec: .*{words}"):
        config.load(write(user=_exec(**change)))


_PLUGIN = """#!/bin/sh
printf %s "$KUBERNETES_EXEC_INFO" > "${0%/*}/asked"
status="\\"status\\": {\\"token\\": \\"$2.$FLAVOUR.$OUTER\\"}"
printf '{"apiVersion": "%s", "kind": "ExecCredential", %s}' "$1" "$status"
"""


async def test_exec_plugin_runs_relative_to_the_kubeconfig(write: Any, tmp_path: Path) -> None:
    (tmp_path / "plugin").write_text(_PLUGIN)
    (tmp_path / "plugin").chmod(0o755)
    told = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "people"}}
    authority = _data("authority-one.pem")
    user = _exec(
        command="./plugin",
        args=[V1, "get"],
        env=[{"name": "FLAVOUR", "value": "vanilla"}],
        interactiveMode="IfAvailable",
        provideClusterInfo=True,
    )
    path = write(cluster={"certificate-authority-data": authority, "extensions": [told]}, user=user)

    found = config.load(path, environ={"OUTER": "outer", "FLAVOUR": "plain"})

    assert await _header(found) == "Bearer get.vanilla.outer"
    assert json.loads((tmp_path / "asked").read_text())["spec"]["cluster"] == {
        "server": "https://api:6443",
        "config": {"audience": "people"},
        "certificate-authority-data": authority,
    }


async def test_in_cluster_config_is_read_from_the_service_account(account: Path) -> None:
    found = config.load(environ=POD, service_account=account)

    assert found.server == "https://10.0.0.1:443"
    assert found.namespace == "kube-system"
    assert found.disable_compression
    assert found.tls.authorities == (account / "ca.crt").read_bytes()
    assert list(found.files) == [account / "token", account / "ca.crt"]
    assert await _header(found) == "Bearer pod-token"


def test_kubeconfig_cluster_settings_are_applied(write: Any) -> None:
    settings = {
        "tls-server-name": "apiserver.test",
        "disable-compression": True,
        "certificate-authority-data": _data("authority-one.pem"),
        "extensions": [{"name": "minikube", "extension": {}}],
    }

    found = config.load(write(cluster=settings))

    authorities = (CERTS / "authority-one.pem").read_bytes()
    assert found.tls == TlsSettings(authorities=authorities, server_name="apiserver.test")
    assert found.disable_compression


async def test_kubeconfig_files_are_merged_and_the_first_context_is_used(write: Any) -> None:
    first = write(user={"token": "first"}, context={"namespace": "one"}, name="a", label="one")
    second = write(user={"token": "second"}, context={"namespace": "two"}, name="b", label="two")

    found = config.load(f"{first}:/does/not/exist:{second}")

    assert found.namespace == "one"
    assert await _header(found) == "Bearer first"
    assert found.source == f"{first} (context 'one')"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no such file"),
        ("", "must be a mapping with clusters"),
        ("a: 1\nb: 2\na: 3", "is not valid YAML: line 3: duplicate name a$"),
        ("token: *hunter2", r"found undefined alias \(not shown\)"),
        ("users: [u]", "users must be a list of mappings, each with a name"),
        (json.dumps({"contexts": []}), "current-context: is not set"),
        (json.dumps({"current-context": "x"}), "context 'x' does not exist"),
        ("\udcff", "byte 0 is not UTF-8"),
    ],
)
def test_malformed_kubeconfig_error_names_the_file(
    tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))

    with pytest.raises(ClusterConfigError, match=words) as caught:
        config.load(str(path))

    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("made", "secret"),
    [
        (lambda: credentials.bearer("opaque-token"), "opaque-token"),
        (lambda: credentials.basic("me", "hunter22"), "hunter22"),
    ],
    ids=["bearer", "basic"],
)
def test_credentials_are_masked_in_logs(made: Callable[[], Credential], secret: str) -> None:
    sent = str(made().header)

    assert redact.mask_text(f"{secret} and {sent.split()[1]}").count(redact.MASK) == 2


_START = """
import asyncio, pathlib, sys
from ccm.kube import client, config, transport

async def main():
    found = config.load(
        environ={"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "9"},
        service_account=pathlib.Path(sys.argv[1]),
    )
    async with transport.Transport(found) as opened:
        client.Client(opened, name="x")
        print((await found.credentials.current()).header)

asyncio.run(main())
heavy = {"kubernetes", "pydantic", "requests", "urllib3", "yaml"} & set(sys.modules)
print("heavy:", sorted(heavy))
peak = [line for line in open("/proc/self/status") if line.startswith("VmRSS")][0]
print("rss:", peak.split()[1])
"""


def test_in_cluster_config_imports_no_heavy_modules(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "ca.crt").write_bytes((CERTS / "authority-one.pem").read_bytes())
    root = Path(__file__).parents[3]

    done = subprocess.run(
        [sys.executable, "-c", _START, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    header, heavy, rss = done.stdout.splitlines()
    assert header == "Bearer t"
    assert heavy == "heavy: []"
    assert int(rss.removeprefix("rss: ")) < 60 * 1024
