"""Storage on this machine: names, modes, SQLite."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ccm.persistence import errors, postgres, registry, s3
from ccm.persistence.interface import MachineId, PersistenceProviderStatus, new_machine_id
from ccm.persistence.objects import check_key, instance_name, key_of
from ccm.persistence.postgres import PostgresConfig
from ccm.persistence.s3 import S3Config
from tests.unit.persistence.helpers import LOCAL, NAME, opened, thing

S3 = S3Config(
    bucket="bucket",
    endpoint="https://s3.example",
    access_key_id_file=Path("/id"),
    secret_access_key_file=Path("/secret"),
)
POSTGRES = PostgresConfig(host="db.example")


@pytest.mark.parametrize(
    ("config", "changed", "is_other"),
    [
        (S3, {"access_key_id_file": Path("/other")}, False),
        (S3, {"ca_file": Path("/other")}, False),
        (S3, {"allow_insecure": True}, False),
        (S3, {"endpoint": "https://other.example"}, True),
        (S3, {"bucket": "other"}, True),
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
def test_instance_name_depends_on_the_place_not_on_credentials(
    config: Any, changed: dict[str, Any], is_other: bool
) -> None:
    module = s3 if isinstance(config, S3Config) else postgres
    other = msgspec.structs.replace(config, **changed)
    names = [
        module.storage([one], registry.BackendContext()).instances() for one in (config, other)
    ]

    assert (names[0] != names[1]) is is_other


def test_invalid_postgres_table_name_is_refused() -> None:
    with pytest.raises(errors.BackendDead, match="lower-case letters"):
        postgres.PostgresStore(msgspec.structs.replace(POSTGRES, table="a; drop table b"))


def test_machine_id_requires_the_cluster_uid() -> None:
    assert new_machine_id("uid", "name") == MachineId(cluster_uid="uid", name="name")
    with pytest.raises(ValueError, match="cluster_uid"):
        new_machine_id("", "name")


def test_instance_status_is_written_as_json_and_yaml() -> None:
    up = PersistenceProviderStatus(instance_exists=True, status=True, mean_persist_latency=0.25)
    assert up.to_json() == {"exists": True, "status": True, "mean_persist_latency": 0.25}
    assert up.to_yaml() == {"exists": True, "status": True, "meanPersistLatency": 0.25}
    assert PersistenceProviderStatus(instance_exists=True).to_json() == {"exists": True}


def test_missing_backend_package_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "ccm.persistence.s3")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(errors.BackendDead, match=r"kube-ccm\[s3\]"):
        registry.load_backend("s3")


def test_storage_keys_of_different_names_never_collide() -> None:
    """The keys also differ on file systems that ignore case."""
    chance = random.Random(7)
    names = {
        "".join(chance.choices("aAbB%~/._-:äÄ0 ", k=chance.randint(1, 4))) for _ in range(20_000)
    }
    names |= {name * 80 for name in list(names)[:200] if len(name) == 4}
    keys = {key_of("", name) for name in names}

    assert len(keys) == len(names)
    assert len({key.lower() for key in keys}) == len(names)
    assert all(check_key(key) == key for key in keys)


def test_instance_name_is_stable_across_versions() -> None:
    """Stored objects are found by this name, so its digest must never change."""
    assert instance_name("sqlite", {"path": "/var/lib/ccm/x.db"}) == "sqlite-25f3e37046f2f283"


def test_postgres_uses_tls_unless_insecure_or_on_a_socket() -> None:
    def ssl(**settings: Any) -> Any:
        store = postgres.PostgresStore(msgspec.structs.replace(POSTGRES, **settings))
        return store._options()["ssl"]

    assert ssl().check_hostname
    assert ssl(allow_insecure=True) is False
    assert ssl(host="/run/postgresql") is False


@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.parametrize("is_folder", [True, False])
async def test_storage_with_wider_file_modes_is_refused(
    tmp_path: Path, kind: str, is_folder: bool
) -> None:
    async with opened(LOCAL[kind](tmp_path)) as store:
        await store.put_object(NAME, thing())
    inside = next(path for path in (tmp_path / "store").rglob("*") if path.is_file())
    (tmp_path / "store" if is_folder else inside).chmod(0o755)

    with pytest.raises(errors.BackendDead, match=r"mode 755.*chmod"):
        async with opened(LOCAL[kind](tmp_path)):
            pass


async def test_symbolic_link_in_storage_is_refused(tmp_path: Path) -> None:
    async with opened(LOCAL["sqlite"](tmp_path)):
        pass
    file = tmp_path / "store" / "x.db"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(errors.BackendDead, match="is a symbolic link; use a real file"):
        async with opened(LOCAL["sqlite"](tmp_path)):
            pass


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("PRAGMA application_id=7", "database of another program"),
        ("PRAGMA user_version=2", r"schema 2, this version reads up to 1; upgrade"),
    ],
)
async def test_database_of_another_program_or_schema_is_refused(
    tmp_path: Path, statement: str, said: str
) -> None:
    async with opened(LOCAL["sqlite"](tmp_path)):
        pass
    with closing(sqlite3.connect(tmp_path / "store" / "x.db")) as db:
        db.execute(statement)

    with pytest.raises(errors.BackendDead, match=said):
        async with opened(LOCAL["sqlite"](tmp_path)):
            pass
