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
from ccm.app.persistence import Backend, PersistenceStores
from ccm.app.provider import Misconfigured
from ccm.app.shutdown import MARGIN_S
from ccm.base import clock
from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.errors import BackendDead, BackendUnavailable
from ccm.persistence.journal import FLUSH_S, Journal
from ccm.persistence.memory import MemoryStore
from ccm.persistence.objects import instance_name
from ccm.persistence.store import Claim
from ccm.testing.persistence_contract import KIND, thing
from ccm.testing.persistence_harness import FaultyStore, InstanceFaults, captured_logs
from tests.support import journals
from tests.waiting import DEADLINE_S

UID = "3f2c9a56-0000-4000-8000-000000000001"
LEASE = "kube-system/cloud-controller-manager"


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


ONE = "instances: [{sqlite: {path: HERE/b/x.db}}]\n"
MEMORY = "instances: [{memory: {}}]\n"


async def until_open(made: PersistenceStores) -> Backend:
    """Wait until all storage is open; return the storage of objects."""
    async with asyncio.timeout(DEADLINE_S):
        for backend in made.backends():
            await backend.tried.wait()
    assert [backend.fault for backend in made.backends() if backend.fault] == []
    return made.objects


async def test_storage_is_open_only_while_leading(tmp_path: Path) -> None:
    """The next leader reads what the former one wrote."""
    first = stores(tmp_path, ONE)
    assert "standing by" in (await first.health()).detail
    async with first.opened("kubernetes", "me", 1):
        objects = await until_open(first)
        assert (await first.health()).detail == ""
        key = await objects.provider.put_object(objects.instance, thing())
    assert "standing by" in (await first.health()).detail

    second = stores(tmp_path, ONE)
    async with second.opened("kubernetes", "you", 2):
        objects = await until_open(second)
        assert await objects.provider.get_object(objects.instance, KIND, key) == thing()
        assert second.writer() == WriterIdentity(identity="you", epoch=2, lease=LEASE)


@pytest.mark.virtual_time
async def test_on_open_gets_the_provider_and_is_retried(tmp_path: Path) -> None:
    made, attempts = stores(tmp_path, MEMORY), list[Any]()

    async def on_open(provider: Any, instance: str) -> None:
        attempts.append(await provider.get_all_objects(instance, KIND))
        if len(attempts) == 1:
            raise BackendUnavailable("not yet")

    made.on_open = on_open
    async with made.opened("kubernetes", "me", 1):
        await asyncio.sleep(10 * persistence.RETRY_S)
    assert attempts == [[], []]


def store_of(made: PersistenceStores) -> Any:
    """The instance whose store a test replaces."""
    held: Any = made.objects.provider
    return held._instances[made.objects.instance]


@pytest.mark.parametrize("can_tell", [True, False])
async def test_storage_is_not_created_for_another_cluster_if_its_backend_can_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, can_tell: bool
) -> None:
    made = stores(tmp_path, MEMORY, cluster_uid="another")
    if not can_tell:
        monkeypatch.setattr(store_of(made), "store", WithoutListing(store_of(made).store))
    async with made.opened("kubernetes", "me", 1):
        if can_tell:
            with pytest.raises(BackendDead, match="no data of the cluster another, only of: none"):
                await made.wait_open()
        else:
            await made.wait_open()
    assert made.objects.is_open is not can_tell


class Wrapped:
    """Store that wraps another one."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class WithoutListing(Wrapped):
    """Store that cannot tell which clusters have data."""

    def __getattr__(self, name: str) -> Any:
        if name == "clusters":
            raise AttributeError(name)
        return super().__getattr__(name)


class HangingAtTheEnd(Wrapped):
    """Store whose end hangs."""

    async def close(self) -> None:
        await asyncio.Event().wait()


class Hanging(MemoryStore):
    """Store whose calls never end, as on a file system whose server is gone."""

    async def open(self, claim: Claim) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.virtual_time
async def test_hanging_storage_delays_nothing(tmp_path: Path) -> None:
    """Neither the controllers nor, for long, the release of the Lease."""
    told = Mock()
    made = stores(tmp_path, MEMORY, record_event=told)
    store_of(made).store = Hanging()
    began = clock.monotonic()
    async with made.opened("kubernetes", "me", 1):
        assert clock.monotonic() == began
        await asyncio.sleep(120)
        assert "timed out" in made.objects.fault
        assert (await made.health()).detail == f"down: {made.objects.instance}"
        assert told.call_count == 1
        left = clock.monotonic()
    assert clock.monotonic() - left <= persistence.CLOSE_S


@pytest.mark.virtual_time
@pytest.mark.parametrize("hangs", ["open", "write"])
async def test_shutdown_with_hanging_storage_leaves_time_to_release_the_lease(
    tmp_path: Path, hangs: str
) -> None:
    """The last write of the journal, the opening of storage, and the end of both stores."""
    made = stores(tmp_path, sealed(tmp_path, "key"))
    assert made.secrets is not None
    journal = Journal(writer=made.writer)
    made.on_open = journal.open
    faults = InstanceFaults()
    for provider in (made.objects.provider, made.secrets.provider._inner):
        (instance,) = provider._instances.values()
        instance.store = HangingAtTheEnd(FaultyStore(MemoryStore(), faults))
    if hangs == "open":
        faults.well.clear()
    async with made.opened("kubernetes", "me", 1):
        await asyncio.sleep(1)
        if hangs == "write":
            assert made.secrets.is_open
        faults.well.clear()
        journal.put_later(journals.entry(1))
        writing = spawn(made.secrets.provider.put_secret(made.secrets.instance, "n", {}), name="w")
        await asyncio.sleep(2 * FLUSH_S)
        left = clock.monotonic()
        await journal.close()
    assert clock.monotonic() - left < MARGIN_S
    await cancel_and_join(writing)


@pytest.mark.virtual_time
async def test_changes_of_availability_are_reported(tmp_path: Path) -> None:
    """Storage is opened once it is reachable."""
    told, faults = Mock(), InstanceFaults()
    made = stores(tmp_path, MEMORY, record_event=told)
    store_of(made).store = FaultyStore(MemoryStore(), faults)
    faults.fails = True
    async with made.opened("kubernetes", "me", 1):
        await asyncio.sleep(100)
        faults.fails = False
        await asyncio.sleep(60)
        assert (await made.health()).detail == ""
        faults.fails = True
        await asyncio.sleep(100)
    assert [call.args[1] for call in told.call_args_list] == [
        "PersistenceUnavailable",
        "PersistenceAvailable",
        "PersistenceUnavailable",
    ]


@pytest.mark.virtual_time
async def test_unreadable_cluster_uid_is_retried(tmp_path: Path) -> None:
    began = clock.monotonic()

    class Refusing(Api):
        async def raw(self, method: str, path: str, **named: Any) -> bytes:
            if clock.monotonic() - began < 50:
                raise errors.Forbidden(status=403, reason="Forbidden", message="not allowed")
            return await super().raw(method, path, **named)

    made = stores(tmp_path, MEMORY)
    made._client = cast("Client", Refusing())
    async with made.opened("kubernetes", "me", 1):
        await asyncio.sleep(10)
        assert "lacks the verb get of the namespace kube-system" in made.objects.fault
        await asyncio.sleep(60)
        assert made.objects.fault == ""
        assert made.objects.is_open


@pytest.mark.parametrize(
    ("leads", "fault", "epoch"),
    [(True, "", 6), (False, "a leader of epoch 5 has written", 0)],
)
async def test_storage_of_a_recreated_lease_is_taken_over_only_by_the_leader(
    tmp_path: Path, leads: bool, fault: str, epoch: int
) -> None:
    """The count of the Lease restarted at 0; a former leader must not pass for the leader."""

    async def next_epoch(stored: int) -> int | None:
        return stored + 1 if leads else None

    before = stores(tmp_path, ONE)
    async with before.opened("kubernetes", "me", 5):
        objects = await until_open(before)
        key = await objects.provider.put_object(objects.instance, thing())
    after = stores(tmp_path, ONE, next_epoch=next_epoch)
    async with after.opened("kubernetes", "you", 0), asyncio.timeout(DEADLINE_S):
        await after.objects.tried.wait()
        assert fault in after.objects.fault
        assert bool(after.objects.fault) is not leads
        assert after.writer().epoch == epoch
        if leads:
            held = after.objects.provider
            assert await held.get_object(after.objects.instance, KIND, key) == thing()
            await held.put_object(after.objects.instance, thing(size=2))


def test_objects_are_stored_in_config_maps_without_a_file() -> None:
    made = PersistenceStores("", cast("Client", Api()), namespace="here", lease="blue")
    store = store_of(made).store
    assert (store.namespace, store.owner) == ("here", "blue")
    assert made.secrets is None


def sealed(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).write_bytes(name[:1].encode() * 32)
        (folder / name).chmod(0o400)
    files = ", ".join(f"HERE/{name}" for name in names)
    return ONE + (
        f"secrets:\n  encrypted:\n    key_files: [{files}]\n"
        "    storage: {sqlite: {path: HERE/vault/secrets/x.db}}\n"
    )


async def test_secret_store_is_retried_until_it_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistence, "RETRY_S", 0.01)
    (tmp_path / "vault").write_text("in the way")
    made = stores(tmp_path, sealed(tmp_path, "key"))
    async with made.opened("kubernetes", "me", 1), asyncio.timeout(DEADLINE_S):
        assert made.secrets is not None
        await made.objects.tried.wait()
        assert (await made.health()).detail == f"down: {made.secrets.instance}"
        (tmp_path / "vault").unlink()
        while (await made.health()).detail:
            await asyncio.sleep(0.01)
        await made.secrets.provider.put_secret(made.secrets.instance, "one", {"a": b"b"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "instances is missing"),
        ("instances: []", "instances has 0 entries; name exactly one"),
        ("instances: [{sqlit: {}}]", "did you mean 'sqlite'?"),
        ("instances: [{sqlite: {}}]", "sqlite.path is missing"),
        ("instances: [{sqlite: {path: HERE, pat: 1}}]", "sqlite.pat is unknown"),
        ("instances: [{sqlite: 1}]", "must be a mapping"),
        ("instances: [{memory: {}, sqlite: {path: /b}}]", "must name one backend"),
        (
            "instances: [{memory: {}}, {sqlite: {path: /b}}]",
            "instances has 2 entries; name exactly one: kube-ccm uses one storage",
        ),
        (
            ONE + "write_policy: all\n",
            "write_policy no longer exists, kube-ccm uses one storage; a bucket or database can",
        ),
        (ONE + "repair_queue: 5\n", "repair_queue no longer exists"),
        (
            "instances: [{file: {root: HERE}}]",
            "backend 'file' no longer exists; use `sqlite: {path: ",
        ),
        (
            ONE + "secrets: {encrypted: {storage: {file: {root: HERE}}, key_files: [HERE/key]}}",
            "backend 'file' no longer exists",
        ),
        (
            ONE + "secrets: {encrypted: {storage: {memory: {}}, passphrase_files: [HERE/key]}}",
            "encrypted.passphrase_files no longer exists; use key_files",
        ),
        (ONE + "when_unavailable: panic\n", "when_unavailable is 'panic'; it must be one of"),
        ("instances: [{s3: {bucket: b-1, endpoint: 'http://x'}}]", "is not encrypted"),
        (MEMORY + "secrets: {encrypted: {storage: {memory: {}}}}", "keyring"),
    ],
)
def test_invalid_persistence_config_error_names_the_field(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    (tmp_path / "key").chmod(0o400)
    with pytest.raises(Misconfigured) as refused:
        stores(tmp_path, text)
    assert said in str(refused.value)
    assert "--persistence-config=" in str(refused.value)


def test_missing_persistence_config_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot be read: No such file"):
        PersistenceStores(str(tmp_path / "absent"), cast("Client", Api()), namespace="kube-system")


async def test_unavailable_storage_blocks_creations_or_degrades_by_policy(tmp_path: Path) -> None:
    """The folder cannot be created."""
    (tmp_path / "a").write_text("a file is in the way")
    for policy, is_ill in (("block", True), ("degrade", False)):
        text = f"instances: [{{sqlite: {{path: HERE/a/b/x.db}}}}]\nwhen_unavailable: {policy}\n"
        reported = asyncio.Event()
        told = Mock(side_effect=lambda *_, event=reported: event.set())
        made = stores(tmp_path, text, record_event=told)
        async with made.opened("kubernetes", "me", 1), asyncio.timeout(DEADLINE_S):
            await reported.wait()
            assert (await made.health()).ok is not is_ill
            assert made.when_unavailable == policy
        kind, reason, message = told.call_args.args
        assert told.call_count == 1
        assert (kind, reason) == ("Warning", "PersistenceUnavailable")
        assert ("creations are blocked" in message) is is_ill
        assert "File exists" in message


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
    before = stores(tmp_path, sealed(tmp_path, "old"))
    async with before.opened("kubernetes", "me", 2):
        await until_open(before)
        assert before.secrets is not None
        instance = before.secrets.instance
        key = await before.secrets.provider.put_secret(instance, "one", {"a": b"b"})
    with captured_logs() as logged:
        between = stores(tmp_path, sealed(tmp_path, "new", "old"))
        assert between.secrets is not None
        rotate = between.secrets.provider.rotate
        faults = [BackendUnavailable("full")]

        async def fails_at_first(name: str) -> object:
            if faults:
                raise faults.pop()
            return await rotate(name)

        monkeypatch.setattr(between.secrets.provider, "rotate", fails_at_first)
        async with between.opened("kubernetes", "me", 3), asyncio.timeout(DEADLINE_S):
            while "left=0" not in logged():
                await asyncio.sleep(0.01)
    assert "rewritten=1" in logged()
    after = stores(tmp_path, sealed(tmp_path, "new"))
    async with after.opened("kubernetes", "me", 4):
        await until_open(after)
        assert after.secrets is not None
        assert await after.secrets.provider.get_secret(instance, key) == {"a": b"b"}


async def test_storage_of_another_cluster_is_reported_and_not_used(tmp_path: Path) -> None:
    before = stores(tmp_path, ONE)
    async with before.opened("kubernetes", "me", 1):
        await until_open(before)
    reported = asyncio.Event()
    told = Mock(side_effect=lambda *_: reported.set())
    foreign = stores(tmp_path, ONE, uid="another", record_event=told)
    async with foreign.opened("kubernetes", "me", 1), asyncio.timeout(DEADLINE_S):
        await reported.wait()
        assert f"belongs to the cluster {UID}, not to another" in foreign.objects.fault
        with pytest.raises(BackendDead, match="belongs to the cluster"):
            await foreign.objects.provider.put_object(foreign.objects.instance, thing())
    assert "belongs to the cluster" in told.call_args.args[2]


async def test_storage_of_another_daemon_is_reported_and_the_owner_keeps_it(
    tmp_path: Path,
) -> None:
    """Such as one for a second cloud in the same cluster."""
    reported = asyncio.Event()
    owner, second = stores(tmp_path, ONE), stores(tmp_path, ONE, lease="openstack")
    second.on_fault = lambda _: reported.set()
    async with owner.opened("kubernetes", "me", 3):
        objects = await until_open(owner)
        async with second.opened("kubernetes", "you", 7), asyncio.timeout(DEADLINE_S):
            await reported.wait()
        assert await objects.provider.put_object(objects.instance, thing())

    told = f"belongs to the daemon of the Lease {LEASE}, not of kube-system/openstack; configure"
    assert told in second.objects.fault


class Half:
    def instances(self) -> list[str]:
        return [instance_name("half", {})]


def test_backend_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(BackendDead, match="'half' lacks the method initialize, instance_status"):
        Backend("half", Half())
