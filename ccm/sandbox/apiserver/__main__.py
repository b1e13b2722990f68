"""`python -m ccm.sandbox.apiserver`: the API server as a process of its own.

Prints one line of JSON when it is ready: its URL, the path of a kubeconfig and the token
(null without one). Ends cleanly at SIGTERM and SIGINT. With the same data directory
and port a new process continues where the old one ended, even one that was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import pathlib
import signal
from collections.abc import Sequence
from typing import Any

from ccm.sandbox import kubeconfig
from ccm.sandbox.apiserver import allocate, journal, server, store, watch


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until a signal comes."""
    options = _parser().parse_args(arguments)
    options.data_dir.mkdir(parents=True, exist_ok=True)
    options.data_dir = options.data_dir.resolve()
    options.token = options.token_file.read_text().strip() if options.token_file else ""
    asyncio.run(_serve(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ccm.sandbox.apiserver", description=__doc__)
    options: tuple[tuple[str, Any, Any, str], ...] = (
        ("--data-dir", pathlib.Path, None, "where state is kept"),
        ("--host", str, "127.0.0.1", "the address to bind"),
        ("--port", int, 0, "the port; 0 takes a free one"),
        ("--token-file", pathlib.Path, False, "a file with the bearer token clients must bring"),
        ("--watch-history", int, store.HISTORY, "how many changes of a kind watches go back"),
        ("--bookmark-interval", float, watch.BOOKMARK_INTERVAL_S, "seconds between bookmarks"),
        ("--service-cluster-ip-range", _ranges, allocate.CLUSTER_IPS,
         "cluster IPs of Services: CIDR[,CIDR]; one of each IP family makes it dual-stack"),
    )  # fmt: skip
    for name, kind, default, text in options:
        parser.add_argument(name, type=kind, default=default, help=text, required=default is None)
    return parser


def _ranges(text: str) -> tuple[allocate.Network, ...]:
    found = tuple(ipaddress.ip_network(part) for part in text.split(","))
    if len(found) != len({network.version for network in found}):
        raise argparse.ArgumentTypeError(f"{text} has two ranges of one IP family")
    return found


async def _serve(options: argparse.Namespace) -> None:
    data_dir: pathlib.Path = options.data_dir
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    kept = journal.Journal(data_dir / "objects.jsonl")
    async with server.serve(
        store.Store(history=options.watch_history, journal=kept),
        host=options.host,
        port=options.port,
        token=options.token,
        bookmark_interval_s=options.bookmark_interval,
        cluster_ips=options.service_cluster_ip_range,
    ) as url:
        path = data_dir / "kubeconfig"
        kubeconfig.write(path, _clusters(url, options.token), options.token)
        ready = {"url": url, "kubeconfig": str(path), "token": options.token or None}
        print(json.dumps(ready), flush=True)
        await ended.wait()


def _clusters(url: str, token: str) -> dict[str, dict[str, str]]:
    """The ways to the server, by the name of their context.

    With a token there is a second one, `kubectl`: over plain HTTP kubectl sends the
    credentials of a proxy only, so the server is its own proxy there.
    """
    clusters = {"ccm-sandbox": {"server": url}}
    if token:
        proxy = url.replace("://", f"://ccm-sandbox:{token}@", 1)
        clusters["kubectl"] = {"server": url, "proxy-url": proxy}
    return clusters


if __name__ == "__main__":
    main()
