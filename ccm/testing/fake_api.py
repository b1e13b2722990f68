"""A fake of a cloud's JSON API over HTTP: what all of them have in common.

A call is counted, then admitted (token, rate limit), then judged by the fault script, then delayed;
only then does the operation itself run, in one step without waiting. Whoever wants to check what
goes over the wire gives a witness, which is told of each call and its answer.

It needs no test framework, so that a fake can be started as a program.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import hdrs, web

from ccm.base import tasks
from ccm.testing.fake_faults import Fault, Script

HOUR_S = 3600.0
SHUTDOWN_S = 1.0
"""How long a closing server waits for calls under way before it cuts them off."""


class Refused(Exception):
    """A call that the API answers with an error.

    Attributes:
        status: of the answer.
        body: of the answer, to be written as JSON; None = nothing.
    """

    status: int = 500
    body: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A call and its answer, as they went over the wire; `path` is without the prefix."""

    operation: str
    method: str
    path: str
    query: list[tuple[str, str]]
    request: bytes
    status: int
    answer: bytes
    content_type: str = ""


Witness = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One call of the API.

    Attributes:
        method: of it.
        path: as the vendor's document writes it, behind the prefix.
        prefix: in front of it, `/v1` or so; what it has in the document's address.
        handle: from the request and its body, read, to status and answer; it may raise `Refused`.
        pattern: of what stands in braces in the path.
    """

    method: str
    path: str
    handle: Callable[[web.Request, Any], tuple[int, Any]]
    prefix: str = ""
    pattern: str = "[^/]+"

    @property
    def name(self) -> str:
        """Method and path."""
        return f"{self.method} {self.path}"


class FakeApi:
    """One project over HTTP; a fake of a cloud says the rest.

    Args:
        rows: the calls it has.
        witness: told of every call that got an answer of the API itself.
    """

    def __init__(self, rows: Sequence[Row], witness: Witness | None = None) -> None:
        self.script = Script()
        self.calls: Counter[str] = Counter()
        self.log: list[str] = []
        self._rows = rows
        self._witness = witness
        self._released = asyncio.Event()

    # --- what a fake says -----------------------------------------------------------------------

    def admit(self, request: web.Request) -> None:
        """Refuse a call of nobody, or one too many."""
        raise NotImplementedError

    def refusal(self, fault: Fault) -> Refused:
        """The API's error for a fault."""
        raise NotImplementedError

    def missing(self, request: web.Request, status: int) -> Refused:
        """The API's error for a path (404) or a method (405) that it does not have."""
        raise NotImplementedError

    def novel(self, answer: Any) -> Any:
        """An answer as it may look one day."""
        raise NotImplementedError

    def headers(self, request: web.Request) -> Mapping[str, str]:  # noqa: ARG002 - for others
        """Headers of an answer; asked for once for each call, before it is admitted."""
        return {}

    @property
    def latency_s(self) -> float:
        """Before each answer."""
        return 0.0

    # --- what all do ----------------------------------------------------------------------------

    @property
    def writes(self) -> int:
        """How many calls changed something, or tried to."""
        return sum(number for name, number in self.calls.items() if not name.startswith("GET"))

    def heal(self) -> None:
        """No more faults; whoever hangs is let go."""
        self.script.clear()
        self._released.set()
        self._released = asyncio.Event()

    def app(self) -> web.Application:
        """As an aiohttp application."""
        app = web.Application(middlewares=[self._shape_errors])
        for row in self._rows:
            path = row.path.replace("}", f":{row.pattern}}}")
            app.router.add_route(row.method, row.prefix + path, self._shell(row), name=None)
        return app

    def _shell(self, row: Row) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            self.calls[row.name] += 1
            self.log.append(f"{request.method} {request.path_qs}")
            headers = self.headers(request)
            body = await request.read()
            try:
                response = await self._handle(row, request, body)
            except Refused as error:
                response = _answer(error.status, error.body)
            response.headers.update(headers)
            if self._witness is not None and isinstance(response, _Told):
                self._witness(_exchange(row, request, body, response))
            return response

        return handle

    async def _handle(self, row: Row, request: web.Request, body: bytes) -> web.Response:
        self.admit(request)
        fault = self.script.judge(row.name)
        if self.latency_s > 0:
            await asyncio.sleep(self.latency_s)
        if fault is not None and fault.kind != "novelty":
            if fault.applied:
                self._run(row, request, body)
            return await self._break(request, fault)
        status, answer = self._run(row, request, body)
        if fault is not None:
            return _answer(status, self.novel(deepcopy(answer)))
        return _answer(status, answer)

    def _run(self, row: Row, request: web.Request, body: bytes) -> tuple[int, Any]:
        if not body or request.content_type != "application/json":
            return row.handle(request, body)
        try:
            order = msgspec.json.decode(body)
        except msgspec.MsgspecError as error:
            refused = self.refusal(Fault(code="json_error", status=400, message="no JSON"))
            raise refused from error
        return row.handle(request, order)

    async def _break(self, request: web.Request, fault: Fault) -> web.Response:
        if fault.kind == "error":
            raise self.refusal(fault)
        if fault.kind in ("garbage", "empty"):
            text = "<html>" if fault.kind == "garbage" else ""
            return web.Response(
                text=text, status=fault.status or 200, content_type="application/json"
            )
        if fault.kind == "hang":
            await tasks.first_of(self._released.wait(), asyncio.sleep(HOUR_S), name="hang")
        if request.transport:
            request.transport.abort()
        return web.Response()

    @web.middleware
    async def _shape_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as error:
            refused = self.missing(request, error.status)
            return _answer(refused.status, refused.body)


class _Told(web.Response):
    """An answer of the API itself."""


def _answer(status: int, answer: Any) -> web.Response:
    body = None if answer is None else msgspec.json.encode(answer)
    return _Told(body=body, status=status, content_type="application/json" if body else None)


def _exchange(row: Row, request: web.Request, body: bytes, response: web.Response) -> Exchange:
    return Exchange(
        operation=row.name,
        method=request.method,
        path=request.path.removeprefix(row.prefix),
        query=list(request.query.items()),
        request=body,
        status=response.status,
        answer=bytes(response.body or b""),  # type: ignore[arg-type]  # it is bytes or nothing
        content_type=request.headers.get(hdrs.CONTENT_TYPE, ""),
    )


class Served(Protocol):
    """What can be served, such as a `FakeApi`."""

    def app(self) -> web.Application:
        """It as an application."""
        ...

    def heal(self) -> None:
        """End all faults, lest a call wait for ever."""
        ...


def parser(prog: str, description: str, *, prints: str) -> argparse.ArgumentParser:
    """Return the part of a fake's command line that all fakes have."""
    made = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"When it is ready it prints one line of JSON with {prints} until SIGTERM or "
        "SIGINT.",
    )
    option = made.add_argument
    option("names", nargs="*", metavar="NAME", help="a server that is there already")
    option("--port", type=int, default=0, help="0 takes a free one (default)")
    option("--boot-seconds", type=float, default=0.0, help="until a new server runs")
    option("--config", type=Path, help="write a cloud config there, for kube-ccm sandbox")
    option(
        "--machine-class",
        type=Path,
        help="write a MachineClass and its Secret there, for kube-ccm sandbox --machines",
    )
    return made


async def stand(papers: Mapping[Path | None, str], line: Mapping[str, Any]) -> None:
    """Write the files that were asked for, print how to reach the fake, and wait for a signal."""
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    for path, text in papers.items():
        if path:
            path.touch(mode=0o600)
            path.write_text(text)
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    await stop.wait()


@contextlib.asynccontextmanager
async def serve(service: Served, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve while the context is open; yields `http://host:port`.

    Raises:
        OSError: the address is taken or not ours.
    """
    runner = web.AppRunner(
        service.app(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        address, number = runner.addresses[0][:2]
        shown = f"[{address}]" if ":" in address else address
        yield f"http://{shown}:{number}"
    finally:
        service.heal()
        await runner.cleanup()
