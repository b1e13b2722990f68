"""`python -m providers.stackit.testing`: run the fake as a separate process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ccm.testing import fake_api

from . import server, servers
from .state import Settings


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = fake_api.parser(
        "python -m providers.stackit.testing",
        "A fake of STACKIT on loopback, with a network, an image and some servers.",
        prints="the URL and the environment variables that the daemon needs",
    )
    parser.add_argument(
        "--balancer-seconds", type=float, default=0.0, help="time until a load balancer is ready"
    )
    parser.add_argument(
        "--key",
        type=Path,
        help="file to write the service account key to; without it, no authentication",
    )
    return parser


def populate(service: server.Service, names: Sequence[str]) -> None:
    """Create running servers in the network."""
    for name in names:
        order = {
            "name": name,
            "machineType": "c2i.2",
            "imageId": server.IMAGE,
            "networking": {"networkId": server.NETWORK},
        }
        created = servers.new_server(service.cloud, order)
        created.update(status="ACTIVE", launchedAt=service.cloud.now())


def config(url: str) -> str:
    """Return a cloud config for the fake."""
    return (
        f"global:\n"
        f"  projectId: {server.PROJECT}\n"
        f"  region: {server.REGION}\n"
        f"  apiEndpoints:\n"
        f"    iaasApi: {url}{server.IAAS}\n"
        f"    loadBalancerApi: {url}{server.BALANCERS}\n"
        f"loadBalancer:\n"
        f"  networkId: {server.NETWORK}\n"
    )


def machine_class(key: bytes) -> str:
    """Return the YAML of a MachineClass with small servers, and of its Secret."""
    return f"""apiVersion: v1
kind: Secret
metadata: {{name: small}}
stringData:
  project-id: {server.PROJECT}
  serviceaccount.json: {json.dumps(key.decode())}
  userData: |
    #cloud-config
---
apiVersion: machine.sapcloud.io/v1alpha1
kind: MachineClass
metadata: {{name: small}}
provider: stackit
secretRef: {{name: small, namespace: default}}
providerSpec:
  region: {server.REGION}
  machineType: c2i.2
  imageId: {server.IMAGE}
  networking: {{networkId: {server.NETWORK}}}
  allowedAddresses: [10.96.0.0/12]
"""


def machine_deployment(key: bytes) -> str:
    """Return the YAML of a MachineDeployment of Kubermatic's API, and of its Secret."""
    spec = {
        "region": server.REGION,
        "machineType": "c2i.2",
        "imageId": server.IMAGE,
        "networkId": server.NETWORK,
    }
    secret = {"projectId": server.PROJECT, "serviceAccountKey": key.decode()}
    return fake_api.to_yaml(fake_api.machine_deployment("stackit", spec, secret))


def variables(url: str, key: str = "") -> Mapping[str, str]:
    """Return the environment variables for the fake; without key file, no authentication."""
    environ = {"STACKIT_IAAS_ENDPOINT": f"{url}{server.IAAS}"}
    if not key:
        return {**environ, "STACKIT_NO_AUTH": "true"}
    more = {"STACKIT_SERVICE_ACCOUNT_KEY_PATH": key, "STACKIT_TOKEN_BASEURL": f"{url}/token"}
    return {**environ, **more}


async def run(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    service = server.Service(
        Settings(
            boot_s=options.boot_seconds,
            balancer_s=options.balancer_seconds,
            no_auth=options.key is None,
        )
    )
    populate(service, options.names)
    async with server.serve(service, port=options.port) as url:
        papers = {
            options.config: config(url),
            options.key: service.account.key.decode(),
            options.machine_class: machine_class(service.account.key),
            options.machine_deployment: machine_deployment(service.account.key),
        }
        environ = variables(url, str(options.key or ""))
        await fake_api.run_until_signal(papers, {"url": url, "environment": environ})


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(build_parser().parse_args()))
