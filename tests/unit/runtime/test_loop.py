"""What every line of a reconcile carries."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest

from ccm.base import log
from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube.workqueue import WorkQueue
from ccm.runtime.loop import DONE, Loop, Result


@pytest.mark.asyncio
async def test_every_line_of_one_reconcile_has_its_controller_key_and_id() -> None:
    stream = io.BytesIO()
    root = logging.getLogger()
    handlers = root.handlers
    log.setup(fmt="json", stream=stream)
    queue: WorkQueue[str] = WorkQueue("things")
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def reconcile(key: str) -> Result:
        log.logger("deep").info("one")
        await asyncio.sleep(0)
        log.logger("deeper").info("two")
        seen.put_nowait(key)
        return DONE

    loop = spawn(Loop("thing", queue=queue, reconcile=reconcile, workers=2).run(), name="loop")
    for key in ("a", "b"):
        queue.add(key)
    for _ in range(2):
        await seen.get()
    await cancel_and_join(loop)
    log.setup()
    root.handlers = handlers

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    facts = {(line["controller"], line["key"], line["reconcile_id"]) for line in lines}
    assert len(lines) == 4
    assert sorted(fact[:2] for fact in facts) == [("thing", "a"), ("thing", "b")]
    assert len({fact[2] for fact in facts}) == 2
