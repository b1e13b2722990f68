"""`python -m ccm.testing.apiserver`: the in-memory API server as a separate process.

Prints one line of JSON when ready: `url`, `kubeconfig` (path), `token` (null without a token file)
and `ca_file` (path of its CA certificate, null without TLS). Stops on SIGTERM and SIGINT. A new
process with the same data directory and port serves the same objects, also after the old process
was killed.
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
    text = "folder for the objects, a kubeconfig and the CA certificate"
    add("--data-dir", type=pathlib.Path, required=True, help=text)
    add("--port", type=int, default=0, help="port; 0 selects a free port")
    add("--token-file", type=pathlib.Path, help="file with the bearer token that clients need")
    text = "serve HTTPS; clients such as kubectl send tokens only over HTTPS"
    add("--tls", action="store_true", help=text)
    text = "cluster IPs of Services: CIDR[,CIDR]; for dual-stack, one CIDR of each IP family"
    name, default = "--service-cluster-ip-range", services.CLUSTER_IPS
    add(name, type=_ranges, default=default, help=text)
    return parser


def _ranges(text: str) -> tuple[services.Network, ...]:
    networks = tuple(ipaddress.ip_network(part) for part in text.split(","))
    if len(networks) != len({network.version for network in networks}):
        raise argparse.ArgumentTypeError(f"{text} has two ranges of the same IP family")
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
