"""Kubermatic's machine objects before an API server: their CRDs, our rights, and user data."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from ccm.app.kubermaticcontrollers import MANIFESTS
from ccm.kubermatic import crds, names
from ccm.sandbox import KUBERMATIC, cloud, machineapis, realserver
from tests import servers
from tests.manifests import account, shipped
from tests.scenario import harness, machines
from tests.scenario.harness import Cluster, Environment

NAMESPACE = shipped.NAMESPACE
"""Where the shipped Role allows Machines."""
API = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{NAMESPACE}"
MACHINES, SETS, DEPLOYMENTS = (
    f"{API}/{plural}" for plural in ("machines", "machinesets", "machinedeployments")
)
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
BOOTSTRAP = f"/api/v1/namespaces/{names.BOOTSTRAP_NAMESPACE}/secrets"
FLAGS: Mapping[str, str] = {
    "controllers": ",".join(one.alias for one in MANIFESTS.values()),
    "kube-api-qps": "-1",
}


async def install(env: Environment) -> None:
    """The CRDs, the namespace of user data, and our rights."""
    async with servers.connect(env.server) as session:
        await harness.define(session, crds.DEFINITIONS, API)
        namespace = {"metadata": {"name": names.BOOTSTRAP_NAMESPACE}}
        async with session.post("/api/v1/namespaces", json=namespace) as response:
            assert response.status in (201, 409), await response.text()
        if isinstance(env.server, realserver.RealServer):
            await account.install(session, shipped.objects(shipped.KUBERMATIC / "rbac.yaml"))


async def write_user_data(cluster: Cluster, deployment: str, revision: int = 1) -> None:
    """The operating-system-manager writes the user data of a revision of a deployment."""
    name = names.bootstrap_secret(deployment, NAMESPACE)
    metadata = {
        "name": name,
        "annotations": {names.ANNOTATION_BOOTSTRAP_REVISION: str(revision)},
    }
    text = f"#cloud-config\n# of revision {revision}\n"
    data = {names.BOOTSTRAP_KEY: base64.b64encode(text.encode()).decode()}
    body = {"metadata": metadata, "data": data}
    if revision > 1:
        await cluster.patch(f"{BOOTSTRAP}/{name}", body)
    else:
        await cluster.create(BOOTSTRAP, body)


def phase(machine: Mapping[str, Any]) -> str:
    """The phase of a machine; empty: none yet."""
    return str(machine.get("status", {}).get("phase", ""))


def _spec(machine_type: str) -> Mapping[str, Any]:
    """The spec of a machine of the simulated cloud."""
    body = FLEET.api.deployment(0, FLEET.api.simulated(""))
    spec: dict[str, Any] = body["spec"]["template"]["spec"]
    spec["providerSpec"]["value"]["cloudProviderSpec"]["machineType"] = machine_type
    return spec


FLEET = machines.FleetApi(
    api=machineapis.APIS[KUBERMATIC],
    phase=phase,
    kinds=(cloud.TYPES[0], cloud.TYPES[-1]),
    kind=lambda spec: str(spec["providerSpec"]["value"]["cloudProviderSpec"]["machineType"]),
    spec=_spec,
)
