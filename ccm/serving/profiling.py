"""What the process is doing, for people: `/debug/pprof/`.

Paths are those of Go's net/http/pprof; the content is what a Python process can tell. A
profile is taken by a thread that looks at the event loop's stack many times a second and is
written as collapsed stacks (`outer;inner count`), which flame graph tools and speedscope
read. The summary of the heap counts live objects by type, in steps between which the event
loop goes on.
"""

from __future__ import annotations

import asyncio
import gc
import io
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType

from ccm.base import redact
from ccm.serving.http import Handler, Request, Response, text

DEFAULT_S = 30.0
"""Length of a profile where none is asked for (Go, net/http/pprof)."""

LONGEST_S = 300.0
INTERVAL_S = 0.01
"""A hundred looks a second (Go, runtime/pprof)."""

_STEP = 20_000
_TYPES_SHOWN = 100
_DEPTH = 128


class Profiling:
    """The pages below `/debug/pprof/`."""

    def __init__(self) -> None:
        self._sampling = asyncio.Lock()
        self._pages: dict[str, tuple[str, Handler]] = {
            "profile": ("where the event loop spends its time, for ?seconds=N", self._profile),
            "heap": ("live objects by type", self._heap),
            "goroutine": ("tasks with their stacks", self._tasks),
            "threadcreate": ("threads with their stacks", self._threads),
            "cmdline": ("how the process was called", self._cmdline),
        }

    @property
    def pages(self) -> dict[str, Handler]:
        """What to serve, by path."""
        return {"/debug/pprof": self.page, "/debug/pprof/": self.page}

    async def page(self, request: Request) -> Response:
        """The page that the path names, or a list of all."""
        name = request.path.removeprefix("/debug/pprof").removeprefix("/")
        if not name:
            return text("".join(f"{name:14}{words}\n" for name, (words, _) in self._pages.items()))
        if name not in self._pages:
            return text(f"Unknown profile {name}\n", 404)
        return await self._pages[name][1](request)

    async def _profile(self, request: Request) -> Response:
        try:
            seconds = float(request.query.get("seconds", DEFAULT_S))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= LONGEST_S:
            return text(f"seconds must be above 0 and at most {LONGEST_S:.0f}\n", 400)
        if self._sampling.locked():
            return text("another profile is being taken\n", 503)
        async with self._sampling:
            return text(await self._sampled(seconds))

    async def _sampled(self, seconds: float) -> str:
        sampler = _Sampler(threading.get_ident())
        sampler.start()
        try:
            await asyncio.sleep(seconds)
        finally:
            sampler.leave.set()
            await asyncio.to_thread(sampler.join)
        found = sampler.stacks.most_common()
        return "".join(f"{stack} {count}\n" for stack, count in found)

    async def _heap(self, _request: Request) -> Response:
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        objects = _live()
        for number, each in enumerate(objects, start=1):
            kind = f"{type(each).__module__}.{type(each).__qualname__}"
            counts[kind] += 1
            sizes[kind] += sys.getsizeof(each, 0)
            if number % _STEP == 0:
                await asyncio.sleep(0)
        total = len(objects)
        del objects
        lines = [f"{total} objects, {sum(sizes.values())} bytes without what they refer to\n"]
        for kind, size in sizes.most_common(_TYPES_SHOWN):
            lines.append(f"{size:12} {counts[kind]:9} {kind}\n")
        return text("".join(lines))

    async def _tasks(self, _request: Request) -> Response:
        out = io.StringIO()
        tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
        out.write(f"{len(tasks)} tasks\n")
        for task in tasks:
            out.write("\n")
            task.print_stack(file=out)
        return text(out.getvalue())

    async def _threads(self, _request: Request) -> Response:
        frames = sys._current_frames()  # noqa: SLF001 - there is no other way
        threads = threading.enumerate()
        lines = [f"{len(threads)} threads\n"]
        for thread in threads:
            lines.append(f"\n{thread.name}\n")
            stack = _outer_first(frames.get(thread.ident or 0))
            lines += [f"  {frame}\n" for frame in stack]
        return text("".join(lines))

    async def _cmdline(self, _request: Request) -> Response:
        return text(redact.words("\x00".join(sys.orig_argv)))


class _Sampler(threading.Thread):
    """Looks at one thread's stack until told to leave."""

    def __init__(self, watched: int) -> None:
        super().__init__(name="profile", daemon=True)
        self.leave = threading.Event()
        self.stacks: Counter[str] = Counter()
        self._watched = watched

    def run(self) -> None:
        due = time.monotonic()
        while not self.leave.is_set():
            frame = sys._current_frames().get(self._watched)  # noqa: SLF001 - the only way
            self.stacks[";".join(_outer_first(frame))] += 1
            # Late looks are left out: they would all show the same.
            due = max(due + INTERVAL_S, time.monotonic())
            self.leave.wait(due - time.monotonic())


def _outer_first(frame: FrameType | None) -> list[str]:
    return list(_walk(frame))[::-1]


def _walk(frame: FrameType | None) -> Iterator[str]:
    depth = 0
    while frame is not None and depth < _DEPTH:
        module = frame.f_globals.get("__name__", "?")
        yield f"{module}.{frame.f_code.co_qualname}"
        frame, depth = frame.f_back, depth + 1


def _live() -> list[object]:
    """All objects the collector knows, those taken out of its rounds included."""
    frozen = gc.get_freeze_count() > 0
    enabled = gc.isenabled()
    gc.disable()
    try:
        if frozen:
            gc.unfreeze()
        found: list[object] = gc.get_objects()
        if frozen:
            gc.freeze()
    finally:
        if enabled:
            gc.enable()
    return found
