"""`python -m providers.sim`: run the simulated cloud as a separate process."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from ccm.base import parsing
from ccm.testing import fake_api

from . import server, state

EPILOG = """\
When ready, the process prints one line of JSON on standard output,
  {"url": "http://127.0.0.1:40123", "token": "..."}
and serves until SIGTERM or SIGINT. `server.OPERATIONS` lists the operations of the API.

try it:
  echo secret >token; python -m providers.sim --port 8080 --token-file token &
  curl -H 'Authorization: Bearer secret' localhost:8080/v1/instances -d '{"name": "a"}'
  curl -H 'Authorization: Bearer secret' 'localhost:8080/v1/instances?name=a'
make every listing fail until DELETE /admin/faults:
  curl -H 'Authorization: Bearer secret' localhost:8080/admin/faults \\
       -d '{"faults": [{"kind": "error", "status": 503, "operation": "list_instances"}]}'
"""


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m providers.sim",
        description="A stateful simulated cloud on loopback, with configurable latency and faults.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    option("--port", type=int, default=0, help="port to listen on; 0 = a free port (default)")
    option(
        "--latency",
        type=_seconds,
        default=0.0,
        metavar="DURATION",
        help="delay of every call, such as 50ms (default 0)",
    )
    option(
        "--rate-limit",
        type=_rate,
        default=0.0,
        metavar="N",
        help="calls per second; excess calls get 429 with Retry-After; 0 = no limit (default)",
    )
    option(
        "--page-size",
        type=_page_size,
        default=state.MAX_PAGE,
        metavar="N",
        help="maximum items per page, 1 to 500 (default %(default)s)",
    )
    option(
        "--state",
        type=Path,
        metavar="FILE",
        help="JSON file that persists the state of the cloud (default: not persisted)",
    )
    option(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="file with the bearer token that requests need (default: a random token)",
    )
    option("--seed", type=int, metavar="N", help="seed of the generated IDs (default: random)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the simulated cloud until SIGTERM or SIGINT and return the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        asyncio.run(_run(options))
    except (OSError, ValueError) as error:
        print(f"python -m providers.sim: {error}", file=sys.stderr)
        return 1
    return 0


async def _run(options: argparse.Namespace) -> None:
    settings = state.Settings(
        latency_s=options.latency, rate_limit=options.rate_limit, page_size=options.page_size
    )
    token = options.token_file.read_text().strip() if options.token_file else ""
    service = server.Service(token=token, seed=options.seed, settings=settings)
    async with (
        state.persisted(service.worlds, options.state),
        server.serve(service, host=options.host, port=options.port) as url,
    ):
        await fake_api.run_until_signal({}, {"url": url, "token": service.token})


def _not_negative(number: float, text: str) -> float:
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def _seconds(text: str) -> float:
    try:
        return _not_negative(parsing.parse_duration(text).total_seconds(), text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _rate(text: str) -> float:
    return _not_negative(float(text), text)


def _page_size(text: str) -> int:
    number = int(text)
    if not 1 <= number <= state.MAX_PAGE:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {state.MAX_PAGE}")
    return number


if __name__ == "__main__":
    sys.exit(main())
