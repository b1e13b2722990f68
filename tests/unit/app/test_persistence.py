"""`--persistence-config`: its content, and when storage is open."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from ccm.app import persistence
from ccm.app.persistence import PersistenceStores
from ccm.app.provider import Misconfigured
from ccm.kube.client import Client
from ccm.persistence.errors import BackendUnavailable, NoInstanceReachable
from ccm.testing.persistence_contract import KIND, thing
from ccm.testing.persistence_harness import captured_logs
from tests.waiting import DEADLINE_S

UID = "3f2c9a56-0000-4000-8000-000000000001"


class Api:
    """API server that returns the UID of the cluster."""

    def __init__(self, uid: str = UID) -> None:
        self.uid = uid

    async def raw(self, method: str, path: str, **_: Any) -> bytes:
        assert (method, path) == ("GET", "/api/v1/namespaces/kube-system")
        return json.dumps({"metadata": {"uid": self.uid}}).encode()


def stores(folder: Path, text: str, uid: str = UID, **settings: Any) -> PersistenceStores:
    file = folder / "persistence.yaml"
    file.write_text(text.replace("HERE", str(folder)))
    return PersistenceStores(
        str(file), cast("Client", Api(uid)), namespace="kube-system", **settings
    )


TWO = "instances:\n- file: {root: HERE/a}\n- sqlite: {path: HERE/b/x.db}\nwrite_policy: all\n"


async def test_storage_is_open_only_while_leading(tmp_path: Path) -> None:
    """The next leader reads what the former one wrote."""
    first = stores(tmp_path, TWO)
    assert "standing by" in (await first.health()).detail
    async with first.opened("kubernetes", "me", 1):
        assert (await first.health()).detail == ""
        key = await first.manager.put_object(thing())
    assert "standing by" in (await first.health()).detail

    second = stores(tmp_path, TWO)
    async with second.opened("kubernetes", "you", 2):
        assert await second.manager.get_object(KIND, key) == thing()


def sealed(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).write_bytes(name[:1].encode() * 32)
        (folder / name).chmod(0o400)
    files = ", ".join(f"HERE/{name}" for name in names)
    return TWO + (
        f"secrets:\n  encrypted:\n    key_files: [{files}]\n"
        "    storage: {file: {root: HERE/vault/secrets}}\n"
    )


async def test_secret_store_is_retried_until_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistence, "RETRY_S", 0.01)
    (tmp_path / "vault").write_text("in the way")
    made = stores(tmp_path, sealed(tmp_path, "key"))
    async with made.opened("kubernetes", "me", 1), asyncio.timeout(DEADLINE_S):
        (instance,) = made.secrets.instances()
        assert (await made.health()).detail == f"down: {instance}"
        (tmp_path / "vault").unlink()
        while (await made.health()).detail:
            await asyncio.sleep(0.01)
        await made.secrets.put_secret(instance, "one", {"a": b"b"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "instances is missing"),
        ("instances: []", "instances is empty"),
        ("instances: [{fil: {}}]", "did you mean 'file'?"),
        ("instances: [{file: {}}]", "file.root is missing"),
        ("instances: [{file: {root: HERE, rot: 1}}]", "file.rot is unknown"),
        ("instances: [{file: 1}]", "must be a mapping"),
        ("instances: [{file: {root: /a}, sqlite: {path: /b}}]", "must name one backend"),
        ("instances: [{file: {root: HERE}}, {file: {root: HERE}}]", "the same storage"),
        (TWO.replace("all", "some"), "write_policy is 'some'; it must be one of all"),
        ("instances: [{s3: {bucket: b-1, endpoint: 'http://x'}}]", "is not encrypted"),
        ("instances: [{memory: {}}]\nsecrets: {encrypted: {storage: {memory: {}}}}", "keyring"),
    ],
)
def test_invalid_persistence_config_error_names_the_field(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(Misconfigured) as refused:
        stores(tmp_path, text)
    assert said in str(refused.value)
    assert "--persistence-config=" in str(refused.value)


def test_missing_persistence_config_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot be read: No such file"):
        PersistenceStores(str(tmp_path / "absent"), cast("Client", Api()), namespace="kube-system")


async def test_unavailable_storage_blocks_creations_or_degrades_by_policy(tmp_path: Path) -> None:
    """The folder cannot be created, thus no instance is available."""
    (tmp_path / "a").write_text("a file is in the way")
    for policy, is_ill in (("block", True), ("degrade", False)):
        text = f"instances: [{{file: {{root: HERE/a/b}}}}]\nwhen_unavailable: {policy}\n"
        told = Mock()
        made = stores(tmp_path, text, record_event=told)
        async with made.opened("kubernetes", "me", 1):
            assert (await made.health()).ok is not is_ill
            assert await made.manager.may_create() is not is_ill
        kind, reason, message = told.call_args.args
        assert told.call_count == 1
        assert (kind, reason) == ("Warning", "PersistenceUnavailable")
        assert ("creations are blocked" in message) is is_ill


def test_persistence_modules_are_not_imported_without_the_flag() -> None:
    code = (
        "import sys, ccm.app.main, ccm.app.daemon, ccm.app.controllers;"
        "print([n for n in sys.modules if n.startswith('ccm.persistence')"
        " or n in ('obstore', 'asyncpg', 'sqlite3', 'ccm.app.persistence')])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert said.stdout.strip() == "[]"


async def test_secrets_are_rewritten_with_the_new_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has both keys and retries after errors; it logs when the old key is unused."""
    monkeypatch.setattr(persistence, "RETRY_S", 0.01)
    async with stores(tmp_path, sealed(tmp_path, "old")).opened("kubernetes", "me", 1):
        pass
    before = stores(tmp_path, sealed(tmp_path, "old"))
    async with before.opened("kubernetes", "me", 2):
        (instance,) = before.secrets.instances()
        key = await before.secrets.put_secret(instance, "one", {"a": b"b"})
    with captured_logs() as logged:
        between = stores(tmp_path, sealed(tmp_path, "new", "old"))
        rotate = between.secrets.rotate
        faults = [BackendUnavailable("full"), NoInstanceReachable("gone")]

        async def fails_at_first(name: str) -> object:
            if faults:
                raise faults.pop()
            return await rotate(name)

        monkeypatch.setattr(between.secrets, "rotate", fails_at_first)
        async with between.opened("kubernetes", "me", 3), asyncio.timeout(DEADLINE_S):
            while "left=0" not in logged():
                await asyncio.sleep(0.01)
    assert "rewritten=1" in logged()
    after = stores(tmp_path, sealed(tmp_path, "new"))
    async with after.opened("kubernetes", "me", 4):
        assert await after.secrets.get_secret(instance, key) == {"a": b"b"}


async def test_storage_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async with stores(tmp_path, TWO).opened("kubernetes", "me", 1):
        pass
    with pytest.raises(Misconfigured, match=r"--persistence-config=.*belongs to the cluster"):
        async with stores(tmp_path, TWO, uid="another").opened("kubernetes", "me", 1):
            pass
