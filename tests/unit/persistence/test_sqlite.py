"""A SQLite file: how durable it is, and whose."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ccm.persistence import errors
from tests.unit.persistence.helpers import KIND, LOCAL, NAME, opened, thing


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
