"""Files that change while the process runs: tried, told, and tried again where that helps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from ccm.app import options, reload
from ccm.app.daemon import Daemon
from ccm.app.provider import ConfiguredProvider
from ccm.app.reload import Refused, Reloader
from ccm.base import metrics
from ccm.base.files import Signature, signature
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud.config import Context
from ccm.cloud.interface import Cloud

pytestmark = pytest.mark.virtual_time

WAIT_S = 5.0


class File:
    """A source that reads its file; `wrong` in it is refused, `later` refused for now."""

    name = "a-file"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.more: Mapping[Path, Signature] = {}
        self.tries: list[str] = []

    async def use(self) -> str:
        content = self.path.read_text() if self.path.exists() else "wrong"
        self.tries.append(content)
        if content == "crash":
            raise ZeroDivisionError
        if content in ("wrong", "later"):
            raise Refused(f"{content} is refused; token=abcdef", final=content == "wrong")
        return f"now {content}"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    monkeypatch.setattr(reload, "CHECK_S", 0.01)
    path = tmp_path / "file"
    path.write_text("one")
    return File(path)


@asynccontextmanager
async def following(
    file: File, since: Mapping[Path, Signature] = reload.NO_FILES
) -> AsyncIterator[list[tuple[str, str, str]]]:
    """A reloader at work, and the events it recorded."""
    told: list[tuple[str, str, str]] = []
    reloader = Reloader([file], lambda *event: told.append(event), since=since)
    task = spawn(reloader.run(), name="reloader")
    try:
        yield told
    finally:
        await cancel_and_join(task)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def count(outcome: str) -> float:
    labels = {"file": "a-file", "outcome": outcome}
    return metrics.REGISTRY.get_sample_value("ccm_config_reloads_total", labels) or 0.0


async def test_new_content_is_used_and_told(file: File) -> None:
    before = count("success")
    async with following(file) as told:
        file.path.write_text("two")
        await until(lambda: bool(told))

    assert file.tries == ["two"]
    assert told == [("Normal", "ConfigReloaded", "a-file: now two")]
    assert count("success") == before + 1


async def test_credentials_are_followed_while_the_provider_does_not_open(file: File) -> None:
    """It may need them to open at all."""

    @asynccontextmanager
    async def hangs(_given: Context) -> AsyncIterator[Cloud]:
        await asyncio.Event().wait()
        yield Cloud(name="paper", has_cluster_id=True)

    given = options.parse(["--cloud-provider=paper", f"--kubeconfig={file.path}"])
    configured = ConfiguredProvider(given, hangs, Mock())
    since = reload.signatures(given.kubeconfig)
    daemon = Daemon(given, Mock(), configured, plan=None, kubeconfig=file, since=since, over=Mock())
    task = spawn(daemon.run(), name="daemon")
    try:
        file.path.write_text("two")
        await until(lambda: file.tries == ["two"])
        assert daemon.vitals.handle is None
    finally:
        await cancel_and_join(task)


async def test_wrong_content_is_told_once_and_without_secrets(file: File) -> None:
    before = count("failure")
    async with following(file) as told:
        file.path.write_text("wrong")
        await until(lambda: bool(told))
        await asyncio.sleep(0.1)
        assert told == [("Warning", "ConfigRejected", "a-file: wrong is refused; token=[redacted]")]
        assert count("failure") == before + 1
        file.path.write_text("crash")  # a fault of ours ends nothing
        await until(lambda: len(file.tries) == 2)
        file.path.write_text("right")
        await until(lambda: len(told) == 2)

    assert file.tries == ["wrong", "crash", "right"]


async def test_what_may_work_later_is_tried_again(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "RETRY_S", 0.02)
    async with following(file) as told:
        file.path.write_text("later")
        await until(lambda: len(file.tries) >= 3)

    assert len(told) == 1


async def test_what_is_still_being_written_is_not_read(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_come = ["half", "nearly whole", "whole"]

    def growing(paths: Iterable[Path]) -> Mapping[Path, Signature]:
        if to_come:
            file.path.write_text(to_come.pop(0))
        return {path: signature(path) for path in paths}

    monkeypatch.setattr(reload, "_look", growing)
    async with following(file) as told:
        await until(lambda: bool(told))

    assert file.tries == ["whole"]


async def test_a_file_that_is_gone_for_a_while_is_no_change(file: File) -> None:
    async with following(file):
        moved = file.path.rename(file.path.with_name("aside"))
        await asyncio.sleep(0.1)
        moved.rename(file.path)
        await asyncio.sleep(0.1)

    assert file.tries == []


async def test_a_file_that_stays_away_is_a_fault(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "GONE_LOOKS", 3)
    async with following(file) as told:
        file.path.unlink()
        await until(lambda: bool(told))
        file.path.write_text("two")
        await until(lambda: len(told) == 2)

    assert file.tries == ["wrong", "two"]


async def test_a_file_that_the_content_names_is_a_part_of_it(file: File) -> None:
    """Also one that is named only after the first change, and no longer after the second."""
    key, later = file.path.with_name("key"), file.path.with_name("later")
    for path in (key, later):
        path.write_text("one")
    file.more = {key: signature(key)}
    async with following(file):
        file.more = {later: signature(later)}
        key.write_text("changed")
        await until(lambda: len(file.tries) == 1)
        await asyncio.sleep(0.05)
        later.write_text("changed")
        await until(lambda: len(file.tries) == 2)
        file.more = {}
        file.path.write_text("two")
        await until(lambda: len(file.tries) == 3)
        later.write_text("changed again")
        await asyncio.sleep(0.1)

    assert file.tries == ["one", "one", "two"]


async def test_a_change_before_the_following_began_is_seen(file: File) -> None:
    since = {file.path: signature(file.path)}
    file.path.write_text("two")
    async with following(file, since):
        await until(lambda: bool(file.tries))

    assert file.tries == ["two"]


async def test_a_link_that_points_elsewhere_is_a_change(file: File) -> None:
    """So do mounted Secrets change."""
    link = file.path.with_name("link")
    link.symlink_to(file.path)
    file.path, target = link, file.path
    async with following(file) as told:
        other = target.with_name("other")
        other.write_text("two")
        fresh = target.with_name("fresh")
        fresh.symlink_to(other)
        fresh.rename(link)
        await until(lambda: bool(told))

    assert file.tries == ["two"]
