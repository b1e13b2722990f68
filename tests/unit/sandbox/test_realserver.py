"""The files written for and about the real API server."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from ccm.sandbox import realserver


def test_a_kubeconfig_names_server_user_and_certificates(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    ca_file = tmp_path / "ca.crt"
    realserver.write_kubeconfig(path, url="https://127.0.0.1:1", token="t", ca_file=ca_file)
    document = json.loads(path.read_text())
    assert document["clusters"][0]["cluster"] == {
        "server": "https://127.0.0.1:1",
        "certificate-authority": str(ca_file),
    }
    assert document["users"][0]["user"] == {"token": "t"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_missing_programs_are_listed(tmp_path: Path) -> None:
    (tmp_path / "etcd").touch()
    assert realserver.missing_binaries(tmp_path) == ["kube-apiserver"]


def test_a_signing_key_is_a_whole_der_sequence_and_new_each_time() -> None:
    first, second = (realserver._new_signing_key() for _ in range(2))
    assert first != second
    lines = first.splitlines()
    assert (lines[0], lines[-1]) == (
        "-----BEGIN EC PRIVATE KEY-----",
        "-----END EC PRIVATE KEY-----",
    )
    body = base64.b64decode("".join(lines[1:-1]))
    assert body[0] == 0x30
    assert body[1] == len(body) - 2
