"""A fake of a cloud's JSON API over HTTP: what all fakes have in common.

A call is counted, then admitted (token, rate limit), then judged by the fault script, then delayed;
only then does the operation itself run, in one step without waiting. A witness is told of each call
and its answer, to check what goes over the wire. A caller that hangs up is noticed at once: an
operation that still waits is not carried out.

A script is a list of faults in the order in which they were added. For every call, each matching
`latency` fault adds its delay, and the first other matching fault decides the outcome. With
`applied` the operation takes effect and only the answer is lost: the crash point that makes clients
create things twice.

It needs no test framework, so that a fake can be started as a program.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import signal
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import msgspec
from aiohttp import hdrs, web

from ccm.base import clock, tasks

HANG_S = 600.0
LOG_LENGTH = 100_000
"""Calls that a log remembers; the counts go on."""

SHUTDOWN_S = 1.0
"""How long a closing server waits for calls under way before it cuts them off."""


Kind = Literal[
    "error",
    "rate_limit",
    "garbage",
    "empty",
    "hang",
    "drop",
    "novelty",
    "latency",
    "deaf",
    "doomed",
]


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of some calls; fields that a kind does not need are ignored.

    Attributes:
        kind: an error of the API, or 429 with `retry_after_s`; an answer that is `body`, or
            nothing at all; no answer for `delay_s`; a connection that is cut; an answer with fields
            and states of the future; an answer `delay_s` later; of the simulated cloud alone: an
            instance that never becomes a node, or is in error.
        operation: pattern of the calls, such as `POST /servers*`.
        instance: pattern of the ID or name of the thing that a call is about.
        skip: so many of them go well first.
        count: so many go wrong then; None or 0 = all.
        start_s: seconds after which it begins.
        for_s: seconds for which it lasts; None = without end.
        applied: the call takes effect before its answer is lost.
        status: of the answer; 0 = the one of the code.
        code: the API's word for the error, where it has words.
        message: the API's words for people.
        retry_after_s: seconds that the answer names.
        delay_s: seconds until the answer.
        body: the answer.
    """

    kind: Kind = "error"
    operation: str = "*"
    instance: str = "*"
    skip: int = 0
    count: int | None = None
    start_s: float = 0.0
    for_s: float | None = None
    applied: bool = False
    status: int = 0
    code: str = ""
    message: str = "scripted fault"
    retry_after_s: float = 1.0
    delay_s: float | None = None
    body: str = "<html><body>Bad Gateway"


@dataclass(slots=True)
class _Armed:
    fault: Fault
    added: float
    matched: int = 0

    def strikes(self, operation: str, names: Sequence[str], now: float) -> bool:
        """Whether the fault hits this call; counts the calls that match."""
        fault, age = self.fault, now - self.added
        if age < fault.start_s or (fault.for_s is not None and age >= fault.start_s + fault.for_s):
            return False
        if not fnmatchcase(operation, fault.operation):
            return False
        if not any(fnmatchcase(name, fault.instance) for name in names or ("",)):
            return False
        self.matched += 1
        return 0 < self.matched - fault.skip <= (fault.count or math.inf)


class Script:
    """The faults that are armed, in order."""

    def __init__(self) -> None:
        self._armed: list[_Armed] = []

    def add(self, fault: Fault) -> None:
        """Arm a fault from now on."""
        self._armed.append(_Armed(fault, clock.monotonic()))

    def clear(self) -> None:
        """Disarm every fault."""
        self._armed.clear()

    def judge(self, operation: str, names: Sequence[str] = ()) -> tuple[float, Fault | None]:
        """Count a call; return its delay and the fault that it suffers, if any."""
        now, delay_s = clock.monotonic(), 0.0
        for armed in self._armed:
            if not armed.strikes(operation, names, now):
                continue
            if armed.fault.kind != "latency":
                return delay_s, armed.fault
            delay_s += armed.fault.delay_s or 0.0
        return delay_s, None


def novel(answer: Any, *, of_server: str, status: str) -> Any:
    """Return an answer of the future: fields that nobody has documented, unknown states.

    Args:
        answer: as it would be.
        of_server: a field that servers alone have.
        status: of each of them.
    """
    if isinstance(answer, list):
        return [novel(one, of_server=of_server, status=status) for one in answer]
    if not isinstance(answer, dict):
        return answer
    found = {
        key: value if key == "labels" else novel(value, of_server=of_server, status=status)
        for key, value in answer.items()
    }
    if of_server in found:
        found["status"] = status
    found["x_future"] = {"colour": "octarine"}
    return found


class Entry(msgspec.Struct, kw_only=True):
    """One call in the log: `status` is None under way and 0 if no answer was sent."""

    sequence: int
    operation: str
    path: str
    time: str
    status: int | None = None


class CallLog(Counter[str]):
    """How many calls there were of each operation, and the last of them in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self._sequence = 0
        self.entries: deque[Entry] = deque(maxlen=LOG_LENGTH)

    def open(self, operation: str, path: str) -> Entry:
        """Note that a call arrived; the caller fills in the status later."""
        self._sequence += 1
        now = clock.now().isoformat(timespec="milliseconds")
        entry = Entry(sequence=self._sequence, operation=operation, path=path, time=now)
        self.entries.append(entry)
        self[operation] += 1
        return entry

    def clear(self) -> None:
        """Forget the calls and their counts; sequence numbers go on."""
        super().clear()
        self.entries.clear()


class Refused(Exception):
    """A call that the API answers with an error.

    Attributes:
        status: of the answer.
        body: of the answer, to be written as JSON; None = nothing.
        headers: of the answer.
    """

    status: int = 500
    body: Any = None
    headers: Mapping[str, str] = {}


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
        operation: its name; empty = method and path.
        is_admin: of the administrator of the fake: never counted, delayed or broken.
    """

    method: str
    path: str
    handle: Callable[[web.Request, Any], tuple[int, Any]]
    prefix: str = ""
    pattern: str = "[^/]+"
    operation: str = ""
    is_admin: bool = False

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.operation or f"{self.method} {self.path}"


class FakeApi:
    """One project over HTTP; a fake of a cloud says the rest.

    Args:
        rows: the calls it has.
        witness: told of every call that got an answer of the API itself.
    """

    most_body = 1024**2
    """Bytes of a request."""

    def __init__(self, rows: Sequence[Row], witness: Witness | None = None) -> None:
        self.script = Script()
        self.calls = CallLog()
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
        """The API's error for a path (404), a method (405) or a size (413) it does not take."""
        raise NotImplementedError

    def spoiled(self, answer: Any, fault: Fault) -> Any:
        """An answer as a fault makes it: `novelty`, `deaf` or `doomed`."""
        raise NotImplementedError

    def names(self, request: web.Request, body: bytes) -> Sequence[str]:  # noqa: ARG002 - for others
        """The words by which a fault may name the thing that a call is about."""
        return ()

    def read(self, request: web.Request, body: bytes) -> Any:
        """The body as its handler wants it: decoded where it is JSON."""
        if not body or request.content_type != "application/json":
            return body
        try:
            return msgspec.json.decode(body)
        except msgspec.MsgspecError as error:
            refused = self.refusal(Fault(code="json_error", status=400, message="no JSON"))
            raise refused from error

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
        app = web.Application(client_max_size=self.most_body, middlewares=[self._shape_errors])
        for row in self._rows:
            path = row.path.replace("}", f":{row.pattern}}}")
            handle = self._administer(row) if row.is_admin else self._shell(row)
            app.router.add_route(row.method, row.prefix + path, handle, name=None)
        return app

    def _administer(self, row: Row) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            self.admit(request)
            return _answer(*self._run(row, request, await request.read()))

        return handle

    def _shell(self, row: Row) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            entry = self.calls.open(row.name, request.path_qs)
            self.log.append(f"{request.method} {request.path_qs}")
            headers = self.headers(request)
            try:
                body = await request.read()
                try:
                    response = await self._handle(row, request, body)
                except Refused as error:
                    response = _refusal(error)
                entry.status = 0 if isinstance(response, _Lost) else response.status
            finally:
                entry.status = entry.status or 0
            response.headers.update(headers)
            if self._witness is not None and isinstance(response, _Told):
                self._witness(_exchange(row, request, body, response))
            return response

        return handle

    async def _handle(self, row: Row, request: web.Request, body: bytes) -> web.Response:
        self.admit(request)
        delay_s, fault = self.script.judge(row.name, self.names(request, body))
        delay_s += self.latency_s
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        if fault is None:
            return _answer(*self._run(row, request, body))
        if fault.kind in ("novelty", "deaf", "doomed"):
            status, answer = self._run(row, request, body)
            return _answer(status, self.spoiled(deepcopy(answer), fault))
        if fault.applied:
            self._run(row, request, body)
        return await self._break(request, fault)

    def _run(self, row: Row, request: web.Request, body: bytes) -> tuple[int, Any]:
        return row.handle(request, self.read(request, body))

    async def _break(self, request: web.Request, fault: Fault) -> web.Response:
        if fault.kind in ("error", "rate_limit"):
            raise self.refusal(fault)
        if fault.kind in ("garbage", "empty"):
            text = fault.body if fault.kind == "garbage" else ""
            return web.Response(
                text=text, status=fault.status or 200, content_type="application/json"
            )
        if fault.kind == "hang":
            limit_s = HANG_S if fault.delay_s is None else fault.delay_s
            await tasks.first_of(self._released.wait(), asyncio.sleep(limit_s), name="hang")
        if request.transport:
            request.transport.abort()
        return _Lost()

    @web.middleware
    async def _shape_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except (
            web.HTTPNotFound,
            web.HTTPMethodNotAllowed,
            web.HTTPRequestEntityTooLarge,
        ) as error:
            return _refusal(self.missing(request, error.status))
        except Refused as error:  # of the administrator's calls
            return _refusal(error)


class _Lost(web.Response):
    """Returned for a connection that was cut."""


class _Told(web.Response):
    """An answer of the API itself."""


def _answer(status: int, answer: Any) -> web.Response:
    body = None if answer is None else msgspec.json.encode(answer)
    return _Told(body=body, status=status, content_type="application/json" if body else None)


def _refusal(error: Refused) -> web.Response:
    response = _answer(error.status, error.body)
    response.headers.update(error.headers)
    return response


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
async def serve(service: FakeApi, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
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
