"""`python -m providers.sim`: the simulated cloud as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

from ccm.base import parsing

from . import server, state, traffic

EPILOG = """\
When it is ready it prints one line of JSON on standard output,
  {"url": "http://127.0.0.1:40123", "token": "..."}
and serves until SIGTERM or SIGINT. The API describes itself (OpenAPI) at GET /docs.

try it:
  echo secret >token; python -m providers.sim --port 8080 --token-file token &
  curl -H 'Authorization: Bearer secret' localhost:8080/v1/instances -d '{"name": "a"}'
  curl -H 'Authorization: Bearer secret' 'localhost:8080/v1/instances?name=a'
make every listing fail until DELETE /admin/faults:
  curl -H 'Authorization: Bearer secret' localhost:8080/admin/faults \\
       -d '{"faults": [{"kind": "error", "status": 503, "operation": "list_instances"}]}'
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m providers.sim",
        description="A simulated cloud on loopback: stateful, and as slow and moody as you like.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    option("--port", type=int, default=0, help="port to listen on; 0 takes a free one (default)")
    option(
        "--latency",
        type=_seconds,
        default=0.0,
        metavar="DURATION",
        help="how long every call takes, like 50ms (default 0)",
    )
    option(
        "--rate-limit",
        type=_positive,
        default=0.0,
        metavar="N",
        help="calls per second; more get 429 with Retry-After; 0 = no limit (default)",
    )
    option(
        "--page-size",
        type=_page_size,
        default=traffic.MAX_PAGE,
        metavar="N",
        help="items on one page, 1 to 500 (default %(default)s)",
    )
    option(
        "--state",
        type=Path,
        metavar="FILE",
        help="JSON file to load the cloud's content from and to keep it in (default: keep nothing)",
    )
    option(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the bearer token to ask for (default: a random one)",
    )
    option("--seed", type=int, metavar="N", help="repeat the IDs of an earlier run")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the simulated cloud until a signal; returns the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        asyncio.run(_run(options))
    except (OSError, ValueError) as error:
        print(f"python -m providers.sim: {error}", file=sys.stderr)
        return 1
    return 0


async def _run(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    settings = traffic.Settings(
        latency_s=options.latency, rate_limit=options.rate_limit, page_size=options.page_size
    )
    token = options.token_file.read_text().strip() if options.token_file else ""
    service = server.Service(token=token, seed=options.seed, settings=settings)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(state.kept(service.worlds, options.state))
        url = await stack.enter_async_context(
            server.serve(service, host=options.host, port=options.port)
        )
        print(json.dumps({"url": url, "token": service.token}), flush=True)
        await stop.wait()


def _seconds(text: str) -> float:
    try:
        seconds = parsing.parse_duration(text).total_seconds()
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return seconds


def _positive(text: str) -> float:
    number = float(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _page_size(text: str) -> int:
    number = int(text)
    if not 1 <= number <= traffic.MAX_PAGE:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {traffic.MAX_PAGE}")
    return number


if __name__ == "__main__":
    sys.exit(main())
