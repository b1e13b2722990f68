"""`python -m providers.openstack.testing`: run the fake as a separate process."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Mapping, Sequence

from ccm.testing import fake_api

from . import compute, creation, identity, network, server
from .state import REGION, Resource, Settings

FLAVOR, IMAGE, NETWORK = "m1.small", "ubuntu-24.04", "nodes"

VARIABLES: Mapping[str, str] = {"OS_CLOUD": "", "OS_CCM_REGIONAL": "false"}
"""Environment variables that keep a real account of the user away from the fake."""


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = fake_api.parser(
        "python -m providers.openstack.testing",
        "A fake of OpenStack on loopback, with networks, a router, an image and some servers.",
        prints="the URL and the environment variables that the daemon needs",
    )
    text = "time that each change of a load balancer takes"
    parser.add_argument("--balancer-seconds", type=float, default=0.0, help=text)
    return parser


def populate(service: server.Service, names: Sequence[str]) -> None:
    """Create networks with a router, flavor and image, and running servers."""
    world = service.cloud
    nodes = network.new_network(world, NETWORK, ["10.6.0.0/16"])
    network.new_network(world, "public", ["203.0.113.0/24"], external=True)
    network.new_router(world, "k8s", nodes["subnets"])
    flavor = compute.new_flavor(world, FLAVOR)
    creation.new_image(world, IMAGE)
    for name in names:
        compute.new_server(world, name, flavor, nodes["id"])


def _id(things: Mapping[str, Resource], name: str) -> str:
    return next(number for number, thing in things.items() if thing["name"] == name)


def config(service: server.Service, url: str) -> str:
    """Return a cloud config for the fake; it enables all that the provider offers."""
    world = service.cloud
    return f"""[Global]
auth-url = {url}/identity/v3
region = {REGION}
username = {identity.USER}
password = {service.identity.password}
domain-name = Default
tenant-name = k8s
[LoadBalancer]
subnet-id = {_id(world.subnets, f"{NETWORK}-v4")}
floating-network-id = {_id(world.networks, "public")}
manage-security-groups = true
[Route]
router-id = {_id(world.routers, "k8s")}
"""


def secret(service: server.Service, url: str) -> Mapping[str, str]:
    """Return the credentials of a MachineClass."""
    user = {"username": identity.USER, "password": service.identity.password}
    return {"authURL": f"{url}/identity/v3", **user, "domainName": "Default", "tenantName": "k8s"}


def machine_class(service: server.Service, url: str) -> str:
    """Return the YAML of a MachineClass with small servers, and of its Secret."""
    name = {"name": "small"}
    place = {**name, "namespace": "default"}
    data = {**secret(service, url), "userData": "#cloud-config"}
    spec = {"region": REGION, "flavorName": FLAVOR, "imageName": IMAGE}
    spec["networkID"] = _id(service.cloud.networks, NETWORK)
    kind: Resource = {"apiVersion": "machine.sapcloud.io/v1alpha1", "kind": "MachineClass"}
    kind |= {"metadata": name, "provider": "openstack", "secretRef": place, "providerSpec": spec}
    held = {"apiVersion": "v1", "kind": "Secret", "metadata": name, "stringData": data}
    return fake_api.to_yaml([held, kind])


def machine_deployment(service: server.Service, url: str) -> str:
    """Return the YAML of a MachineDeployment of Kubermatic's API, and of its Secret."""
    spec = {"region": REGION, "flavor": FLAVOR, "image": IMAGE, "network": NETWORK}
    names = {"authURL": "identityEndpoint", "tenantName": "projectName"}
    data = {names.get(key, key): text for key, text in secret(service, url).items()}
    return fake_api.to_yaml(fake_api.machine_deployment("openstack", spec, data))


async def run(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    names = ("balancer_s", "balancer_change_s", "balancer_removal_s")
    seconds = dict.fromkeys(names, options.balancer_seconds)
    # An administrator has raised the limit of routes.
    settings = Settings(boot_s=options.boot_seconds, router_routes=1000, **seconds)
    service = server.Service(settings)
    populate(service, options.names)
    async with server.serve(service, port=options.port) as url:
        papers = {
            options.config: config(service, url),
            options.machine_class: machine_class(service, url),
            options.machine_deployment: machine_deployment(service, url),
        }
        await fake_api.run_until_signal(papers, {"url": url, "environment": VARIABLES})


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(build_parser().parse_args()))
