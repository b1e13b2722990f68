"""Base of the fakes of cloud JSON APIs over HTTP.

A call is counted, then admitted (token, rate limit), then matched against the fault script, then
delayed. Only then does the operation run, in one step without waiting. The `witness`, a callback of
the tests, receives each call that the API itself answered, to check the wire format. When a client
disconnects, its call is cancelled: an operation that has not run yet does not run.

A script is a list of faults in the order in which they were added. For every call, the first
matching fault that is no `latency` fault decides the outcome, and each matching `latency` fault
before it adds its delay. With `applied` the operation takes effect and only the answer is lost: a
client that repeats such a call carelessly creates a resource twice.

The module needs no test framework, so that a fake can run as a program.
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
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import msgspec
from aiohttp import hdrs, web

from ccm.base import clock, tasks

HANG_S = 600.0
"""Duration of a `hang` without `delay_s`, in seconds."""

LOG_LENGTH = 100_000
"""Number of calls that a log keeps; the counts are not limited."""

SHUTDOWN_S = 1.0
"""Seconds for which a closing server waits for in-flight calls before it cancels them."""


FaultKind = Literal[
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
    """A fault of some calls. A kind ignores the fields that it does not need.

    Attributes:
        kind: `error`: an error of the API. `rate_limit`: status 429 with `retry_after_s`.
            `garbage`: `body` as the answer. `empty`: an empty answer. `hang`: no answer; the
            connection is cut after `delay_s`. `drop`: the connection is cut at once. `novelty`: an
            answer with unknown fields and states. `latency`: the answer `delay_s` later. Only in
            the simulated cloud: `deaf`, an instance that never becomes a node, and `doomed`, an
            instance in an error state.
        operation: glob pattern of the calls, such as `POST /servers*`.
        instance: glob pattern of the ID or name of the resource that a call is about.
        skip: number of matching calls that succeed first.
        count: number of matching calls that fail after the skipped ones; None or 0 = all.
        start_s: seconds until the fault begins.
        for_s: duration in seconds; None = without end.
        applied: whether the call takes effect before its answer is lost.
        status: HTTP status of the answer; 0 = the status of `code`.
        code: error code, for an API with error codes.
        message: error message of the API.
        retry_after_s: seconds in the Retry-After header of the answer.
        delay_s: seconds until the answer.
        body: body of the answer of kind `garbage`.
    """

    kind: FaultKind = "error"
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
class _ActiveFault:
    fault: Fault
    added: float
    matched: int = 0

    def matches(self, operation: str, names: Sequence[str], now: float) -> bool:
        """Return whether the fault applies to this call; count the calls that match."""
        fault, age = self.fault, now - self.added
        if age < fault.start_s or (fault.for_s is not None and age >= fault.start_s + fault.for_s):
            return False
        if not fnmatchcase(operation, fault.operation):
            return False
        if not any(fnmatchcase(name, fault.instance) for name in names or ("",)):
            return False
        self.matched += 1
        return 0 < self.matched - fault.skip <= (fault.count or math.inf)


class FaultScript:
    """The active faults, in the order in which they were added."""

    def __init__(self) -> None:
        self._armed: list[_ActiveFault] = []

    def add(self, fault: Fault) -> None:
        """Activate a fault from now on."""
        self._armed.append(_ActiveFault(fault, clock.monotonic()))

    def clear(self) -> None:
        """Remove all faults."""
        self._armed.clear()

    def match(self, operation: str, names: Sequence[str] = ()) -> tuple[float, Fault | None]:
        """Return the delay of a call in seconds, and the fault that decides its outcome or None.

        The call is counted for that fault and for each matching `latency` fault before it.
        """
        now, delay_s = clock.monotonic(), 0.0
        for armed in self._armed:
            if not armed.matches(operation, names, now):
                continue
            if armed.fault.kind != "latency":
                return delay_s, armed.fault
            delay_s += armed.fault.delay_s or 0.0
        return delay_s, None


def with_unknown_fields(
    answer: Any, *, of_server: str, status: str, mappings: Collection[str] = ("labels",)
) -> Any:
    """Return the answer with unknown fields, and with an unknown status of each server.

    Args:
        of_server: a field that only servers have.
        status: the status to set on servers.
        mappings: fields that stay unchanged, because they have names that users choose.
    """

    def changed(part: Any) -> Any:
        return with_unknown_fields(part, of_server=of_server, status=status, mappings=mappings)

    if isinstance(answer, list):
        return [changed(item) for item in answer]
    if not isinstance(answer, dict):
        return answer
    result = {key: value if key in mappings else changed(value) for key, value in answer.items()}
    if of_server in result:
        result["status"] = status
    result["x_future"] = {"colour": "octarine"}
    return result


class LoggedCall(msgspec.Struct, kw_only=True):
    """A call in the log. `status` is None while in flight and 0 if no answer was sent."""

    sequence: int
    operation: str
    path: str
    time: str
    status: int | None = None


class CallLog(Counter[str]):
    """Number of calls per operation, and the latest calls in order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self._sequence = 0
        self.entries: deque[LoggedCall] = deque(maxlen=LOG_LENGTH)

    def open(self, operation: str, path: str) -> LoggedCall:
        """Record an arrived call; the caller sets the entry's `status` when it answers the call."""
        self._sequence += 1
        now = clock.now().isoformat(timespec="milliseconds")
        entry = LoggedCall(sequence=self._sequence, operation=operation, path=path, time=now)
        self.entries.append(entry)
        self[operation] += 1
        return entry

    def clear(self) -> None:
        """Drop the calls and their counts; sequence numbers continue."""
        super().clear()
        self.entries.clear()


class ErrorResponse(Exception):
    """An error answer of the API to a call.

    Attributes:
        status: HTTP status of the answer.
        body: body of the answer, before JSON encoding; None = no body.
        headers: headers of the answer.
    """

    status: int = 500
    body: Any = None
    headers: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A call and its answer as sent over the wire; `path` is without the endpoint's prefix."""

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
class Endpoint:
    """An endpoint of the API.

    Attributes:
        path: path in the vendor's documentation, without the prefix.
        prefix: path of the base URL in the vendor's documentation, such as `/v1`.
        handle: function from request and decoded body to status and answer; it may raise
            `ErrorResponse`.
        pattern: regular expression for the parameters in braces in the path.
        operation: name of the operation; empty = method and path.
        is_admin: whether the endpoint controls the fake. Its calls are never counted, delayed or
            failed.
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
    """A fake API of one project over HTTP; subclasses add credentials, errors and state of a cloud.

    Args:
        rows: the endpoints.
        witness: called for every call that the API itself answered.
    """

    max_body_bytes = 1024**2
    """Maximum size of a request in bytes."""

    def __init__(self, rows: Sequence[Endpoint], witness: Witness | None = None) -> None:
        self.script = FaultScript()
        self.calls = CallLog()
        self.log: list[str] = []
        self._rows = rows
        self._witness = witness
        self._released = asyncio.Event()

    # --- overridden by fakes --------------------------------------------------------------------

    def admit(self, request: web.Request) -> None:
        """Raise the API's error for a call without valid credentials or above the rate limit."""
        raise NotImplementedError

    def refusal(self, fault: Fault) -> ErrorResponse:
        """Return the API's error for a fault."""
        raise NotImplementedError

    def rejection(self, request: web.Request, status: int) -> ErrorResponse:
        """Return the API's error for a bad path (404), method (405) or body size (413)."""
        raise NotImplementedError

    def altered_answer(self, answer: Any, fault: Fault) -> Any:
        """Return an answer changed by a fault: `novelty`, `deaf` or `doomed`."""
        raise NotImplementedError

    def resource_names(self, request: web.Request, body: bytes) -> Sequence[str]:  # noqa: ARG002 - for overrides
        """Return the names by which a fault can select the resource of a call."""
        return ()

    def read(self, request: web.Request, body: bytes) -> Any:
        """Return the body in the form that handlers expect: decoded if it is JSON.

        Raises:
            ErrorResponse: the body is not valid JSON.
        """
        if not body or request.content_type != "application/json":
            return body
        try:
            return msgspec.json.decode(body)
        except msgspec.MsgspecError as error:
            refused = self.refusal(Fault(code="json_error", status=400, message="invalid JSON"))
            raise refused from error

    def headers(self, request: web.Request) -> Mapping[str, str]:  # noqa: ARG002 - for overrides
        """Return the headers of an answer. Called once per call, before `admit`."""
        return {}

    @property
    def latency_s(self) -> float:
        """Delay before each answer, in seconds."""
        return 0.0

    # --- common to all fakes --------------------------------------------------------------------

    @property
    def writes(self) -> int:
        """Number of write calls, failed ones included: all operations but `GET`."""
        return sum(number for name, number in self.calls.items() if not name.startswith("GET"))

    def heal(self) -> None:
        """Remove all faults and release hanging calls."""
        self.script.clear()
        # The old event releases the calls that hang now; later calls wait for the new one.
        self._released.set()
        self._released = asyncio.Event()

    def app(self) -> web.Application:
        """Return the aiohttp application."""
        app = web.Application(client_max_size=self.max_body_bytes, middlewares=[self._shape_errors])
        for row in self._rows:
            path = row.path.replace("}", f":{row.pattern}}}")
            handle = self._administer(row) if row.is_admin else self._shell(row)
            app.router.add_route(row.method, row.prefix + path, handle, name=None)
        return app

    def _administer(self, row: Endpoint) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            self.admit(request)
            return _answer(*self._run(row, request, await request.read()))

        return handle

    def _shell(self, row: Endpoint) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            entry = self.calls.open(row.name, request.path_qs)
            self.log.append(f"{request.method} {request.path_qs}")
            headers = self.headers(request)
            try:
                body = await request.read()
                try:
                    response = await self._handle(row, request, body)
                except ErrorResponse as error:
                    response = _refusal(error)
                entry.status = 0 if isinstance(response, _DroppedResponse) else response.status
            finally:
                entry.status = entry.status or 0
            response.headers.update(headers)
            if self._witness is not None and isinstance(response, _ApiResponse):
                self._witness(_exchange(row, request, body, response))
            return response

        return handle

    async def _handle(self, row: Endpoint, request: web.Request, body: bytes) -> web.Response:
        self.admit(request)
        delay_s, fault = self.script.match(row.name, self.resource_names(request, body))
        delay_s += self.latency_s
        if delay_s > 0:
            await asyncio.sleep(delay_s)
        if fault is None:
            return _answer(*self._run(row, request, body))
        if fault.kind in ("novelty", "deaf", "doomed"):
            status, answer = self._run(row, request, body)
            return _answer(status, self.altered_answer(deepcopy(answer), fault))
        if fault.applied:
            self._run(row, request, body)
        return await self._break(request, fault)

    def _run(self, row: Endpoint, request: web.Request, body: bytes) -> tuple[int, Any]:
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
        return _DroppedResponse()

    @web.middleware
    async def _shape_errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed, web.HTTPRequestEntityTooLarge) as error:
            return _refusal(self.rejection(request, error.status))
        except ErrorResponse as error:  # raised by an admin endpoint
            return _refusal(error)


class _DroppedResponse(web.Response):
    """Placeholder response of a cut connection."""


class _ApiResponse(web.Response):
    """An answer of the API itself."""


def _answer(status: int, answer: Any) -> web.Response:
    body = None if answer is None else msgspec.json.encode(answer)
    return _ApiResponse(body=body, status=status, content_type="application/json" if body else None)


def _refusal(error: ErrorResponse) -> web.Response:
    response = _answer(error.status, error.body)
    response.headers.update(error.headers)
    return response


def _exchange(row: Endpoint, request: web.Request, body: bytes, response: web.Response) -> Exchange:
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
    """Return an argument parser with the options that all fakes share."""
    cli = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"When ready, prints {prints} as a line of JSON; serves until SIGTERM or SIGINT.",
    )
    option = cli.add_argument
    option("names", nargs="*", metavar="NAME", help="name of an existing server")
    option("--port", type=int, default=0, help="port; 0 selects a free port (default)")
    option("--boot-seconds", type=float, default=0.0, help="seconds until a new server runs")
    option("--config", type=Path, help="file to write a cloud config to, for kube-ccm sandbox")
    option(
        "--machine-class",
        type=Path,
        help="file to write a MachineClass and its Secret to, for kube-ccm sandbox --machines",
    )
    option(
        "--machine-deployment",
        type=Path,
        help="file to write a MachineDeployment of Kubermatic's API and its Secret to, for "
        "kube-ccm sandbox --machines --machine-api kubermatic",
    )
    return cli


def machine_deployment(
    provider: str, spec: Mapping[str, Any], secret: Mapping[str, str]
) -> Sequence[dict[str, Any]]:
    """Return a Secret and a MachineDeployment of Kubermatic's API that refers to it.

    Args:
        provider: value of `cloudProvider`.
        spec: `cloudProviderSpec` without credentials.
        secret: field of `cloudProviderSpec` -> credential.
    """
    where = {"namespace": "kube-system", "name": f"machine-controller-{provider}"}
    references = {key: {"secretKeyRef": {**where, "key": key}} for key in secret}
    value = {
        "cloudProvider": provider,
        "cloudProviderSpec": {**references, **spec},
        "operatingSystem": "ubuntu",
        "operatingSystemSpec": {"distUpgradeOnBoot": False},
    }
    labels = {"name": "workers"}
    template = {"providerSpec": {"value": value}, "versions": {"kubelet": "1.36.3"}}
    return (
        {"apiVersion": "v1", "kind": "Secret", "metadata": where, "stringData": dict(secret)},
        {
            "apiVersion": "cluster.k8s.io/v1alpha1",
            "kind": "MachineDeployment",
            "metadata": {"namespace": "kube-system", "name": "workers"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": template},
            },
        },
    )


def to_yaml(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return documents as YAML, each in one line of JSON."""
    return "".join(f"---\n{json.dumps(document)}\n" for document in documents)


async def run_until_signal(files: Mapping[Path | None, str], ready_line: Mapping[str, Any]) -> None:
    """Write files, print the ready line as JSON, and wait for SIGTERM or SIGINT.

    Args:
        files: path -> text; a text whose path is None is not written.
        ready_line: content of the ready line.
    """
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    for path, text in files.items():
        if path:
            path.touch(mode=0o600)
            path.write_text(text)
    sys.stdout.write(json.dumps(ready_line) + "\n")
    sys.stdout.flush()
    await stop.wait()


@contextlib.asynccontextmanager
async def serve(service: FakeApi, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the fake while the context is open; yield `http://host:port`.

    Raises:
        OSError: the address is in use or not local.
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
        service.heal()  # hanging calls would delay the shutdown
        await runner.cleanup()
