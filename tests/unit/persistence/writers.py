"""Killed writers: a process that forks one writer after the other and checks the storage.

    python -m tests.unit.persistence.writers sqlite FOLDER TIMES

prints the number of killed writers; fails at the first acknowledged object that is missing.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ccm.persistence.objects import key_of
from tests.unit.persistence.helpers import KIND, LOCAL, NAME, opened, thing

OBJECTS = 20
LONGEST_S = 0.05
"""A writer lives this long at most after its first write."""


async def write_for_ever(kind: str, folder: Path, said: int) -> None:
    """Print each write once it is acknowledged."""
    async with opened(LOCAL[kind](folder)) as store:
        number = 0
        while True:
            number += 1
            obj = thing(f"n{number % OBJECTS}", number=number, fill="x" * 5000)
            await store.put_object(NAME, obj)
            os.write(said, f"{number}\n".encode())


def acknowledged(kind: str, folder: Path, after_s: float) -> list[int]:
    """Return the writes that were acknowledged before the writer was killed."""
    hear, say = os.pipe()
    if (pid := os.fork()) == 0:
        asyncio.run(write_for_ever(kind, folder, say))
    os.close(say)
    with open(hear, "rb") as heard:
        first = heard.readline()
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        lines = [first, *heard.read().splitlines(keepends=True)]
    os.waitpid(pid, 0)
    return [int(line) for line in lines if line.endswith(b"\n")]


async def look(kind: str, folder: Path, numbers: Sequence[int]) -> None:
    newest = {number % OBJECTS: number for number in numbers}
    async with opened(LOCAL[kind](folder)) as store:
        for at, number in newest.items():
            found = await store.get_object(NAME, KIND, key_of("default", f"n{at}"))
            # The one after it may have been written and not yet acknowledged.
            assert found is not None
            assert found["spec"]["number"] in (number, max(numbers) + 1)
        assert len(await store.get_all_objects(NAME, KIND)) <= OBJECTS


def main(kind: str, folder: Path, times: int) -> int:
    chance = random.Random(1)
    for _ in range(times):
        numbers = acknowledged(kind, folder, chance.random() * LONGEST_S)
        assert numbers
        asyncio.run(look(kind, folder, numbers))
    return times


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
