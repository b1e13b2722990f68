"""Kubelets on Kubermatic's machines get their serving certificates approved."""

from __future__ import annotations

import base64
import re
from typing import Any

import aiohttp
import pytest

from ccm.kubermatic import names
from ccm.sandbox import process
from tests import pki, servers
from tests.scenario.harness import Environment, wait_for
from tests.scenario.test_kubermatic import (
    DEPLOYMENTS,
    FLAGS,
    MACHINES,
    deployment,
    phase,
    prepare,
)

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
NODES = "system:nodes"


async def ask(env: Environment, name: str, node: str, *wanted: str) -> str:
    """A kubelet requests a serving certificate; the path of the request."""
    user = f"system:node:{node}"
    groups = [NODES, "system:authenticated"]
    content = pki.signing_request(user, *map(pki.alternative, wanted))
    spec = {
        "signerName": names.SIGNER,
        "request": base64.b64encode(content).decode(),
        "usages": ["digital signature", "server auth"],
        # Only for the built-in server: a real one knows them better.
        "username": user,
        "groups": groups,
    }
    headers = {"Impersonate-User": user, "Impersonate-Group": NODES}

    async def accepted() -> bool:
        """Whether the binding of the kubelets is in force, too."""
        body = {"metadata": {"name": name}, "spec": spec}
        async with (
            servers.connect(env.server) as session,
            session.post(REQUESTS, json=body, headers=headers) as answer,
        ):
            assert answer.status in (201, 403), await answer.text()
            return answer.status == 201

    await wait_for(accepted, "the request is accepted")
    return f"{REQUESTS}/{name}"


async def metrics_of(port: int) -> str:
    url = f"https://{process.LOOPBACK}:{port}/metrics"
    connector = aiohttp.TCPConnector(ssl=pki.client_context())
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()


@pytest.mark.row("kubermatic-approver-01", "kubermatic-approver-05", "kubermatic-metrics-03")
@pytest.mark.both_servers
async def test_kubelet_gets_only_a_certificate_for_its_own_names(env: Environment) -> None:
    """With the shipped permissions; the metrics of the machines are there, too."""
    await prepare(env)
    binding = {
        "metadata": {"name": "kubelets-request-certificates"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:node-bootstrapper",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": NODES}],
    }
    await env.cluster.create(BINDINGS, binding)
    port = process.pick_port()
    daemon = await env.start_leading(
        flags={
            **FLAGS,
            "controllers": f"{FLAGS['controllers']},nodecsrapprover",
            "secure-port": str(port),
            "authorization-always-allow-paths": "/metrics",
        }
    )
    await env.cluster.create(DEPLOYMENTS, deployment(1))

    async def created() -> dict[str, Any]:
        (machine,) = await env.cluster.items(MACHINES) or [{}]
        return machine if phase(machine) == "Pending" else {}

    machine = await wait_for(created, "the machine has an instance")
    node = machine["metadata"]["name"]
    addresses = [one["address"] for one in machine["status"]["addresses"]]
    assert addresses
    foreign = await ask(env, "foreign", node, node, "192.0.2.99")
    own = await ask(env, "own", node, node, *addresses)

    async def conditions(path: str) -> list[str]:
        found = await env.cluster.get(path) or {}
        return [one["type"] for one in found.get("status", {}).get("conditions", [])]

    assert await wait_for(lambda: conditions(own), "the request is decided") == ["Approved"]
    await daemon.says("certificate request not approved", node=node, key="foreign")
    assert await conditions(foreign) == []

    text = await metrics_of(port)
    (series,) = re.findall(r"^machine_controller_machines_total\{(.*)\} 1\.0$", text, re.MULTILINE)
    assert 'size="small"' in series
    assert 'provider="sim"' in series
    assert f'machine_controller_machine_created{{machine="{node}"}}' in text
    assert 'machine_deployment_replicas{name="web",namespace="kube-system"}' in text
    assert await daemon.stop() == 0
