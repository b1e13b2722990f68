"""Examples: MachineDeployments of Kubermatic's API, accepted by API server and provider; and a
CronJob whose rights are sufficient.
"""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ccm.cli import backup
from ccm.cloud.configvar import Reference, Resolver
from ccm.cloud.kubermatic import decode_config
from ccm.kubermatic import crds
from ccm.sandbox import realserver
from providers.hcloud import kubermatic as of_hcloud
from providers.hcloud import machines as hcloud_machines
from providers.openstack import kubermatic as of_openstack
from providers.openstack import machines as openstack_machines
from providers.sim import kubermatic as of_sim
from providers.sim import machines as sim_machines
from providers.stackit import kubermatic as of_stackit
from providers.stackit import machines as stackit_machines
from tests import servers
from tests.e2e.provisioning.templates import fill, placeholders
from tests.manifests import account, shipped
from tests.scenario import harness, kubermatic, machines

FOLDER = shipped.MANIFESTS / "examples"
DRIVERS: Mapping[str, tuple[Any, Any]] = {
    "hetzner": (of_hcloud, hcloud_machines),
    "openstack": (of_openstack, openstack_machines),
    "stackit": (of_stackit, stackit_machines),
    "sim": (of_sim, sim_machines),
}
UUID = "0b1d8b8a-0000-4000-8000-00000000000"
VALUES = {
    "HZ_TOKEN": "t" * 64,
    "OPENSTACK_AUTH_URL": "https://keystone.example.com/v3",
    "OPENSTACK_APPLICATION_CREDENTIAL_ID": "a" * 32,
    "OPENSTACK_APPLICATION_CREDENTIAL_SECRET": "secret",
    "OPENSTACK_REGION": "RegionOne",
    "OPENSTACK_IMAGE": "ubuntu-24.04",
    "OPENSTACK_NETWORK": "nodes",
    "SIM_TOKEN": "token",
    "STACKIT_PROJECT_ID": f"{UUID}1",
    "STACKIT_SERVICE_ACCOUNT_KEY": '{\n  "credentials": {"privateKey": "-----BEGIN\\nEND"}\n}',
    "STACKIT_IMAGE_ID": f"{UUID}2",
    "STACKIT_NETWORK_ID": f"{UUID}3",
    "YOUR_PUBLIC_KEY": "ssh-ed25519 AAAA me",
}
OPTIONAL = re.compile(r"^( {12})# ([a-z]\w+: \S.*)$", re.MULTILINE)
"""A field of `cloudProviderSpec` that is commented out."""

each = pytest.mark.parametrize("package", DRIVERS)


@pytest_asyncio.fixture
async def env(api_server: servers.ApiServer, tmp_path: Path) -> AsyncIterator[harness.Environment]:
    async with harness.open_environment(api_server, tmp_path) as opened:
        yield opened


def text(package: str) -> str:
    return (FOLDER / f"{package}-machinedeployment.yaml").read_text()


def test_each_provider_has_an_example() -> None:
    suffix = "-machinedeployment.yaml"
    names = {path.name.removesuffix(suffix) for path in FOLDER.glob(f"*{suffix}")}

    assert names == DRIVERS.keys()
    assert {name for package in names for name in placeholders(text(package))} == VALUES.keys()


@pytest.mark.row("kubermatic-example-01")
@each
@pytest.mark.parametrize("with_optional", [False, True], ids=["plain", "optional"])
def test_provider_accepts_the_spec_of_the_example(package: str, *, with_optional: bool) -> None:
    written = text(package)
    if with_optional:
        written, count = OPTIONAL.subn(r"\1\2", written)
        assert count >= 2
    secret, deployment = fill(written, VALUES)
    assert secret["metadata"]["name"] == f"machine-controller-{package}"

    def data_of(reference: Reference) -> Mapping[str, bytes] | None:
        where = {"namespace": reference.namespace, "name": reference.name}
        assert (reference.kind, where) == ("Secret", secret["metadata"])
        return {key: value.encode() for key, value in secret["stringData"].items()}

    module, native = DRIVERS[package]
    resolver = Resolver(data_of, {})
    spec = deployment["spec"]["template"]["spec"]
    config = decode_config(spec["providerSpec"]["value"])
    driver = module.KubermaticMachines(None)
    config = driver.add_kubermatic_defaults(config)
    converted = driver.kubermatic_spec(config, resolver, strict=True)
    credentials = driver.kubermatic_credentials(config.cloud_provider_spec, resolver)

    assert config.cloud_provider == package
    # By default a driver has the name of its provider.
    assert package in (*driver.provider_names, module.__name__.split(".")[1])
    assert native.problems(converted, credentials) == []
    assert spec["versions"]["kubelet"]


@pytest.mark.row("kubermatic-example-01")
async def test_api_server_accepts_the_examples(api_server: servers.ApiServer) -> None:
    async with servers.connect(api_server) as session:
        await harness.define(session, crds.DEFINITIONS, kubermatic.API)
        for package in DRIVERS:
            for document in fill(text(package), VALUES):
                where = collection(document)
                async with session.post(
                    where, json=document, params={"fieldValidation": "Strict"}
                ) as response:
                    assert response.status == 201, await response.text()


@servers.only_real
async def test_backup_needs_only_the_rights_of_its_example(
    env: harness.Environment, tmp_path: Path
) -> None:
    await machines.prepare(env)
    await kubermatic.install(env)
    await machines.make_class(env.cluster, "small", machines.SIM, machines.sim_secret("token"))
    secret, deployment = fill(text("sim"), VALUES)
    for document in (secret, deployment):
        await env.cluster.create(collection(document), document)
    job, *rights = shipped.objects(FOLDER / "backup-cronjob.yaml")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name = pod["serviceAccountName"]
    async with servers.connect(env.server) as session:
        user = f"system:serviceaccount:{shipped.NAMESPACE}:{name}"
        await account.install(session, rights, user)
        token = await account.token_of(session, name)
    kubeconfig, key = tmp_path / "kubeconfig", tmp_path / "key"
    realserver.write_kubeconfig(kubeconfig, url=(await env.new_proxy()).url, token=token)
    key.write_bytes(b"k" * 32)
    key.chmod(0o400)
    config = tmp_path / "config.yaml"
    config.write_text(
        f"instances: [{{sqlite: {{path: {tmp_path}/store/a.db}}}}]\n"
        f"secrets: {{encrypted: {{storage: {{sqlite: {{path: {tmp_path}/store/s.db}}}}, "
        f"key_files: [{key}]}}}}\n"
    )
    (_, *flags) = container["args"]
    assert [Path(word).name for word in (*container["command"], container["args"][0])] == [
        "kube-ccm",
        backup.BACKUP.name,
    ]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert [flag.removeprefix("--persistence-config=") in mounts for flag in flags] == [True]

    said = io.StringIO()
    request = backup.BACKUP.read([f"--kubeconfig={kubeconfig}", f"--persistence-config={config}"])
    assert await backup.back_up(request, said, environ={}) == 0

    assert "Secret: 2 stored" in said.getvalue()
    assert "MachineDeployment.cluster.k8s.io: 1 stored" in said.getvalue()
    assert "MachineClass: 1 stored" in said.getvalue()


def collection(document: Mapping[str, Any]) -> str:
    """The collection of an object."""
    return kubermatic.SECRETS if document["kind"] == "Secret" else kubermatic.DEPLOYMENTS
