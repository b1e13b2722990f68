"""Profiles, dumps and the verbosity over HTTP."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator

import pytest

from ccm.base import log
from ccm.base.tasks import cancel_and_join, spawn
from ccm.serving import verbosity
from ccm.serving.profiling import Profiling
from tests.unit.serving.callers import request


async def page(path: str, *query: tuple[str, str], of: Profiling | None = None) -> tuple[int, str]:
    asked = request(f"/debug/pprof{path}", query=query)
    response = await (of or Profiling()).page(asked)
    return response.status, response.body.decode()


def spin_for_a_while(seconds: float) -> None:
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


async def test_a_profile_shows_where_the_time_went() -> None:
    async def busy() -> None:
        for _ in range(40):
            spin_for_a_while(0.01)
            await asyncio.sleep(0)

    (status, text), _ = await asyncio.gather(page("/profile", ("seconds", "0.5")), busy())

    stacks = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert status == 200
    assert any(stack.endswith("spin_for_a_while") for stack in stacks)
    assert all(int(count) > 0 for count in stacks.values())


async def test_one_profile_is_taken_at_a_time() -> None:
    profiling = Profiling()

    answers = await asyncio.gather(
        *(page("/profile", ("seconds", "0.1"), of=profiling) for _ in range(2))
    )

    assert sorted(status for status, _ in answers) == [200, 503]


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "1e9", "nan"])
async def test_a_profile_has_a_reasonable_length(seconds: str) -> None:
    assert (await page("/profile", ("seconds", seconds)))[0] == 400


class Rare:
    """Something to be found on the heap."""


async def test_the_heap_is_summed_up_by_type_frozen_objects_included() -> None:
    kept = [Rare() for _ in range(3000)]
    gc.freeze()
    status, text = await page("/heap")
    assert gc.get_freeze_count() > 0

    assert status == 200
    (line,) = [line for line in text.splitlines() if line.endswith("test_profiling.Rare")]
    assert int(line.split()[1]) == len(kept)


async def test_tasks_and_threads_are_listed_with_their_stacks() -> None:
    task = spawn(asyncio.Event().wait(), name="somebody")
    await asyncio.sleep(0)
    _, tasks = await page("/goroutine")
    _, threads = await page("/threadcreate")
    await cancel_and_join(task)

    assert "name='somebody'" in tasks
    assert "MainThread" in threads


async def test_the_index_names_every_page_and_others_are_not_there() -> None:
    for path in ("", "/"):
        _, index = await page(path)
        assert [line.split()[0] for line in index.splitlines()] == [
            *("profile", "heap", "goroutine", "threadcreate", "cmdline")
        ]
    assert (await page("/cmdline"))[0] == 200
    assert (await page("/block"))[0] == 404


@pytest.fixture
def verbose() -> Iterator[None]:
    before = log.verbosity()
    yield
    log.set_verbosity(before)


@pytest.mark.usefixtures("verbose")
async def test_a_put_changes_the_verbosity() -> None:
    response = await verbosity.change(request(method="PUT", body=b" 5\n"))

    assert response.body == b"successfully set klog.logging.verbosity to 5\n"
    assert log.verbosity() == 5
    assert (await verbosity.index(request())).body == b"v=5\n"


@pytest.mark.usefixtures("verbose")
@pytest.mark.parametrize(
    ("method", "body", "status"),
    [("GET", b"", 406), ("POST", b"5", 406), ("PUT", b"", 400), ("PUT", b"-1", 400)],
)
async def test_nothing_else_does(method: str, body: bytes, status: int) -> None:
    before = log.verbosity()

    assert (await verbosity.change(request(method=method, body=body))).status == status
    assert log.verbosity() == before


async def test_the_command_line_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.orig_argv", ["python", "--master=https://me:hunter2@host", "-v=2"])

    shown = await page("/cmdline")

    assert shown == (200, "python\0--master=https://[redacted]@host\0-v=2")
