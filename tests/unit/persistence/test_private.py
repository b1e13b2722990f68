"""Storage of this machine is nobody else's to read, and one process's to write."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ccm.persistence import errors
from tests.unit.persistence.helpers import LOCAL, NAME, opened, thing


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
