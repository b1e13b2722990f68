"""`python -m providers.hcloud.testing`: the fake as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
from collections.abc import Sequence
from pathlib import Path

from . import networks, server, servers
from .answers import Call
from .settings import Settings
from .state import ApiError

NETWORK = "k8s"
RANGE = "100.0.0.0/9"
"""Of the network; the Pods of `kube-ccm sandbox` are in it too. The real thing takes none that is
not private."""

ORDER = {"server_type": "cx23", "image": "ubuntu-24.04", "location": "fsn1"}


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m providers.hcloud.testing",
        description="A fake of the Hetzner Cloud on loopback, with a network and some servers.",
        epilog="When it is ready it prints one line of JSON with endpoint and token, and serves "
        "until SIGTERM or SIGINT.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a server that is there already")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--action-seconds", type=float, default=0.0, help="of each action")
    parser.add_argument("--boot-seconds", type=float, default=0.0, help="until a new server runs")
    parser.add_argument(
        "--config", type=Path, help="write a cloud config there, for kube-ccm sandbox"
    )
    parser.add_argument(
        "--machine-class",
        type=Path,
        help="write a MachineClass and its Secret there, for kube-ccm sandbox --machines",
    )
    return parser


def populate(service: server.Service, names: Sequence[str]) -> None:
    """A network, and servers in it that run."""
    subnet = {"type": "cloud", "ip_range": "100.0.0.0/16", "network_zone": "eu-central"}
    body = {"name": NETWORK, "ip_range": RANGE, "subnets": [subnet]}
    networks.create(service.cloud, Call(body=body))
    (network,) = service.cloud.networks.values()
    for name in names:
        made = servers.make(service.cloud, name, ORDER)
        made["status"] = "running"
        service.cloud.servers[made["id"]] = made
        networks.join(service.cloud, network, made, "servers")


def config(endpoint: str, token: str) -> str:
    """A cloud config for the fake, with everything that the provider offers."""
    settings = {
        "HCLOUD_ENDPOINT": endpoint,
        "HCLOUD_TOKEN": token,
        "HCLOUD_NETWORK": NETWORK,
        "HCLOUD_LOAD_BALANCERS_LOCATION": "fsn1",
        "HCLOUD_LOAD_BALANCERS_TYPE": "lb11",
    }
    return "".join(f"{name}: {text}\n" for name, text in settings.items())


def machine_class(token: str) -> str:
    """A MachineClass of small servers in the network, and its Secret; YAML."""
    return f"""apiVersion: v1
kind: Secret
metadata: {{name: small}}
stringData: {{token: {token}}}
---
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {{name: small}}
provider: hcloud
secretRef: {{name: small, namespace: default}}
providerSpec: {{serverType: cx23, location: fsn1, networks: [{NETWORK}]}}
"""


async def run(options: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    service = server.Service(Settings(action_s=options.action_seconds, boot_s=options.boot_seconds))
    try:
        populate(service, options.names)
    except ApiError as error:
        most = service.cloud.settings.network_servers
        raise SystemExit(
            f"at most {most} names: a network of the real one has room for no more: {error}"
        ) from None
    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    async with server.serve(service, port=options.port) as endpoint:
        papers = {
            options.config: config(endpoint, service.token),
            options.machine_class: machine_class(service.token),
        }
        for path, text in papers.items():
            if path:
                path.touch(mode=0o600)
                path.write_text(text)
        print(json.dumps({"endpoint": endpoint, "token": service.token}), flush=True)
        await stop.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(build_parser().parse_args()))
