"""Storage on this machine: names, modes, SQLite."""

from __future__ import annotations

import random
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ccm.base import redact
from ccm.persistence import errors, postgres, registry, s3
from ccm.persistence.errors import BackendUnavailable
from ccm.persistence.interface import MachineId, PersistenceProviderStatus, new_machine_id
from ccm.persistence.local import text_of
from ccm.persistence.objects import checked, encode, instance_name, key_of
from ccm.persistence.postgres import PostgresConfig
from ccm.persistence.s3 import S3Config
from tests.unit.persistence.helpers import KIND, LOCAL, NAME, opened, thing


def test_keys_of_many_names_never_clash() -> None:
    """Also where case does not count, as on some file systems."""
    chance = random.Random(7)
    names = {
        "".join(chance.choices("aAbB%~/._-:äÄ0 ", k=chance.randint(1, 4))) for _ in range(20_000)
    }
    names |= {name * 80 for name in list(names)[:200] if len(name) == 4}
    keys = {key_of("", name) for name in names}

    assert len(keys) == len(names)
    assert len({key.lower() for key in keys}) == len(names)
    assert all(checked(key) == key for key in keys)


def test_longest_name_of_kubernetes_fits_a_file_name() -> None:
    assert len(encode("A" * 253)) + len(".json") < 255
    assert key_of("", "a") == "_/a"
    assert key_of("_", "a") != key_of("", "a")


def test_name_of_an_instance_is_the_same_for_ever() -> None:
    """What was stored under it is found again: the digest must not change with a version."""
    assert instance_name("file", {"root": "/var/lib/ccm"}) == "file-8a356fa0c16f75f1"


S3 = S3Config(bucket="b", endpoint="https://s3.example")
POSTGRES = PostgresConfig(host="db.example")


@pytest.mark.parametrize(
    ("config", "changed", "is_other"),
    [
        (S3, {"access_key_id_file": Path("/other")}, False),
        (S3, {"ca_file": Path("/other")}, False),
        (S3, {"allow_insecure": True}, False),
        (S3, {"endpoint": "https://other.example"}, True),
        (S3, {"bucket": "c"}, True),
        (S3, {"prefix": "c"}, True),
        (S3, {"region": "c"}, True),
        (POSTGRES, {"password_file": Path("/other")}, False),
        (POSTGRES, {"user": "other"}, False),
        (POSTGRES, {"ca_file": Path("/other")}, False),
        (POSTGRES, {"host": "other"}, True),
        (POSTGRES, {"port": 5433}, True),
        (POSTGRES, {"database": "other"}, True),
        (POSTGRES, {"table": "other"}, True),
    ],
)
def test_only_the_storage_itself_names_an_instance(
    config: Any, changed: dict[str, Any], is_other: bool
) -> None:
    module = s3 if isinstance(config, S3Config) else postgres
    other = msgspec.structs.replace(config, **changed)
    names = [module.storage([one], registry.Context()).instances() for one in (config, other)]

    assert (names[0] != names[1]) is is_other


def test_database_is_asked_with_tls_unless_told_otherwise() -> None:
    def ssl(**settings: Any) -> Any:
        store = postgres.PostgresStore(msgspec.structs.replace(POSTGRES, **settings))
        return store._options()["ssl"]

    assert ssl().check_hostname
    assert ssl(allow_insecure=True) is False
    assert ssl(host="/run/postgresql") is False


def test_table_is_no_place_for_a_statement() -> None:
    with pytest.raises(errors.BackendDead, match="lower-case letters"):
        postgres.PostgresStore(msgspec.structs.replace(POSTGRES, table="a; drop table b"))


def test_machine_id() -> None:
    assert new_machine_id("uid", "name") == MachineId(cluster_uid="uid", name="name")
    with pytest.raises(ValueError, match="cluster_uid"):
        new_machine_id("", "name")


def test_status_as_it_is_written() -> None:
    up = PersistenceProviderStatus(instance_exists=True, status=True, mean_persist_latency=0.25)
    assert up.to_json() == {"exists": True, "status": True, "mean_persist_latency": 0.25}
    assert up.to_yaml() == {"exists": True, "status": True, "meanPersistLatency": 0.25}
    assert PersistenceProviderStatus(instance_exists=True).to_json() == {"exists": True}


def test_backends_are_found_by_name() -> None:
    assert {"file", "sqlite", "s3", "postgres", "memory"} <= set(registry.available())
    assert {"kubernetes", "encrypted"} <= set(registry.available(registry.SECRETS))
    with pytest.raises(errors.BackendDead, match="did you mean sqlite"):
        registry.load("sqlit")


def test_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "ccm.persistence.s3")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(errors.BackendDead, match=r"kube-ccm\[s3\]"):
        registry.load("s3")


@pytest.mark.parametrize("kind", LOCAL)
async def test_modes(tmp_path: Path, kind: str) -> None:
    async with opened(LOCAL[kind](tmp_path)) as store:
        await store.put_object(NAME, thing())

        for path in (tmp_path / "store", *(tmp_path / "store").rglob("*")):
            wanted = 0o700 if path.is_dir() else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path


@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.parametrize("is_folder", [True, False])
async def test_wider_modes_are_refused(tmp_path: Path, kind: str, is_folder: bool) -> None:
    async with opened(LOCAL[kind](tmp_path)) as store:
        await store.put_object(NAME, thing())
    inside = next(path for path in (tmp_path / "store").rglob("*") if path.is_file())
    (tmp_path / "store" if is_folder else inside).chmod(0o755)

    with pytest.raises(errors.BackendDead, match=r"mode 755.*chmod"):
        async with opened(LOCAL[kind](tmp_path)):
            pass


async def test_links_are_refused(tmp_path: Path) -> None:
    async with opened(LOCAL["file"](tmp_path)) as store:
        await store.put_object(NAME, thing())
    (file,) = tmp_path.rglob("one.json")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(errors.BackendDead, match="symbolic link"):
        async with opened(LOCAL["file"](tmp_path)):
            pass


async def test_second_process_is_refused(tmp_path: Path) -> None:
    async with opened(LOCAL["file"](tmp_path)):
        with pytest.raises(errors.BackendDead, match="in use by another process"):
            async with opened(LOCAL["file"](tmp_path)):
                pass
    async with opened(LOCAL["file"](tmp_path)):
        pass


class NoLog(sqlite3.Connection):
    """On a file system that cannot share memory, where there is no write-ahead log."""

    def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("journal_mode=WAL", "journal_mode"), *given)


@pytest.mark.parametrize(
    ("kind", "mode", "synchronous"),
    [(sqlite3.Connection, "wal", 2), (NoLog, "delete", 3)],
    ids=["with-a-log-full", "without-one-extra"],
)
async def test_what_is_acknowledged_is_on_disk(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[sqlite3.Connection],
    mode: str,
    synchronous: int,
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *at, **how: connect(*at, **how, factory=kind))
    async with opened(LOCAL["sqlite"](tmp_path)) as store:
        held: Any = store._instances[NAME].store
        found = [
            await held._worker.run(held._pragma, one) for one in ("journal_mode", "synchronous")
        ]
        assert found == [mode, synchronous]
        key = await store.put_object(NAME, thing())
        assert await store.get_object(NAME, KIND, key) == thing()


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("PRAGMA application_id=7", "database of another program"),
        ("PRAGMA user_version=2", r"schema 2, this version knows 1; upgrade"),
    ],
)
async def test_other_databases_are_refused(tmp_path: Path, statement: str, said: str) -> None:
    async with opened(LOCAL["sqlite"](tmp_path)):
        pass
    with closing(sqlite3.connect(tmp_path / "store" / "x.db")) as db:
        db.execute(statement)

    with pytest.raises(errors.BackendDead, match=said):
        async with opened(LOCAL["sqlite"](tmp_path)):
            pass


def test_a_credential_is_known_and_one_that_is_too_long_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("of-a-bucket\n")
    assert text_of(file) == "of-a-bucket"
    assert redact.words("of-a-bucket") == redact.MASK

    file.write_text("x" * 300_000)
    with pytest.raises(BackendUnavailable, match="key cannot be read: it has more than 65536"):
        text_of(file)
