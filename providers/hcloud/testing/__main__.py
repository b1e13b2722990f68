"""`python -m providers.hcloud.testing`: run the fake as a separate process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Sequence

from ccm.testing import fake_api

from . import networks, robot, server, servers
from .state import ApiError, Call, Settings

NETWORK = "k8s"
NETWORK_CIDR = "100.0.0.0/9"
"""CIDR of the network; contains the Pods of `kube-ccm sandbox`. The real API accepts only private
ranges."""

ORDER = {"server_type": "cx23", "image": "ubuntu-24.04", "location": "fsn1"}


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = fake_api.parser(
        "python -m providers.hcloud.testing",
        "A fake of the Hetzner Cloud on loopback, with a network and some servers.",
        prints="endpoint and token",
    )
    parser.add_argument("--action-seconds", type=float, default=0.0, help="duration of an action")
    parser.add_argument(
        "--robot",
        action="append",
        default=[],
        metavar="NAME",
        help="name of a dedicated server; starts a fake of the Robot web service",
    )
    return parser


def populate(service: server.Service, names: Sequence[str]) -> None:
    """Create a network with running servers."""
    subnet = {"type": "cloud", "ip_range": "100.0.0.0/16", "network_zone": "eu-central"}
    body = {"name": NETWORK, "ip_range": NETWORK_CIDR, "subnets": [subnet]}
    networks.create(service.cloud, Call(body=body))
    (network,) = service.cloud.networks.values()
    for name in names:
        running = servers.new_server(service.cloud, name, ORDER)
        running["status"] = "running"
        service.cloud.servers[running["id"]] = running
        networks.join(service.cloud, network, running, "servers")


def config(endpoint: str, token: str) -> str:
    """Return a cloud config for use with the fake; it enables all that the provider offers."""
    settings = {
        "HCLOUD_ENDPOINT": endpoint,
        "HCLOUD_TOKEN": token,
        "HCLOUD_NETWORK": NETWORK,
        "HCLOUD_LOAD_BALANCERS_LOCATION": "fsn1",
        "HCLOUD_LOAD_BALANCERS_TYPE": "lb11",
    }
    return "".join(f"{name}: {text}\n" for name, text in settings.items())


def robot_config(endpoint: str, service: robot.RobotService) -> str:
    """Return the part of a cloud config for use with the fake of the Robot web service."""
    return (
        f"HCLOUD_NETWORK_ROUTES_ENABLED: false\nROBOT_ENABLED: true\nROBOT_ENDPOINT: {endpoint}\n"
        f'ROBOT_USER: "{service.user}"\nROBOT_PASSWORD: "{service.password}"\n'
    )


def machine_class(token: str) -> str:
    """Return the YAML of a MachineClass with small servers, and of its Secret."""
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


def machine_deployment(token: str) -> str:
    """Return the YAML of a MachineDeployment of Kubermatic's API, and of its Secret."""
    spec = {"serverType": "cx23", "location": "fsn1", "networks": [NETWORK]}
    return fake_api.to_yaml(fake_api.machine_deployment("hetzner", spec, {"token": token}))


async def run(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    service = server.Service(Settings(action_s=options.action_seconds, boot_s=options.boot_seconds))
    try:
        populate(service, options.names)
    except ApiError as error:
        most = service.cloud.settings.network_servers
        raise SystemExit(
            f"use at most {most} names, as the real API limits the servers of a network: {error}"
        ) from None
    dedicated = robot.RobotService()
    for name in options.robot:
        dedicated.add_server(name)
    async with (
        server.serve(service, port=options.port) as endpoint,
        robot.serve(dedicated) as robot_endpoint,
    ):
        more = robot_config(robot_endpoint, dedicated) if options.robot else ""
        papers = {
            options.config: config(endpoint, service.token) + more,
            options.machine_class: machine_class(service.token),
            options.machine_deployment: machine_deployment(service.token),
        }
        await fake_api.run_until_signal(papers, {"endpoint": endpoint, "token": service.token})


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(build_parser().parse_args()))
