"""`python -m ccm.testing.apiserver`: the API server as a process of its own.

Prints one line of JSON when it is ready: its URL, the path of a kubeconfig, the token and the
path of the certificate that proves it (null without one). Ends cleanly at SIGTERM and SIGINT.
With the same data directory and port a new process continues where the old one ended, even one
that was killed.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import pathlib
import signal
import ssl
from collections.abc import Sequence

from ccm.base import clock
from ccm.serving import tls
from ccm.testing.apiserver import server, services, store


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT."""
    options = _parser().parse_args(arguments)
    options.data_dir.mkdir(parents=True, exist_ok=True)
    options.data_dir = options.data_dir.resolve()
    options.token = options.token_file.read_text().strip() if options.token_file else ""
    asyncio.run(_serve(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ccm.testing.apiserver", description=__doc__)
    add = parser.add_argument
    add("--data-dir", type=pathlib.Path, required=True, help="where state is kept")
    add("--port", type=int, default=0, help="the port; 0 takes a free one")
    add("--token-file", type=pathlib.Path, help="a file with the bearer token clients must bring")
    text = "serve HTTPS; clients like kubectl show a token there only"
    add("--tls", action="store_true", help=text)
    text = "cluster IPs of Services: CIDR[,CIDR]; one of each IP family makes it dual-stack"
    name, default = "--service-cluster-ip-range", services.CLUSTER_IPS
    add(name, type=_ranges, default=default, help=text)
    return parser


def _ranges(text: str) -> tuple[services.Network, ...]:
    networks = tuple(ipaddress.ip_network(part) for part in text.split(","))
    if len(networks) != len({network.version for network in networks}):
        raise argparse.ArgumentTypeError(f"{text} has two ranges of one IP family")
    return networks


async def _serve(options: argparse.Namespace) -> None:
    data_dir: pathlib.Path = options.data_dir
    ended = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, ended.set)
    tls, ca_file = await _tls(data_dir) if options.tls else (None, None)
    async with server.serve(
        store.ObjectStore(path=data_dir / "objects.jsonl"),
        port=options.port,
        token=options.token,
        tls=tls,
        cluster_ips=options.service_cluster_ip_range,
    ) as url:
        path = data_dir / "kubeconfig"
        server.write_kubeconfig(path, url=url, token=options.token, ca_file=ca_file)
        ready = {"url": url, "kubeconfig": str(path), "token": options.token or None}
        ready["ca_file"] = str(ca_file) if ca_file else None
        print(json.dumps(ready), flush=True)
        await ended.wait()


async def _tls(data_dir: pathlib.Path) -> tuple[ssl.SSLContext, pathlib.Path]:
    """Return a context with a new self-signed certificate, and the CA file for clients."""
    pair = await tls.mint(tls.LOCAL, now=clock.now())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair.load_into(context)
    ca_file = data_dir / "ca.crt"
    ca_file.write_bytes(pair.chain)
    return context, ca_file


if __name__ == "__main__":
    main()
