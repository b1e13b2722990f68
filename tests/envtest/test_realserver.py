"""The real API server does for tests what a cluster's would do."""

from __future__ import annotations

import asyncio
import json

from tests import servers
from tests.envtest import assets

pytestmark = servers.only_real


async def test_kubectl_reads_the_kubeconfig(api_server: servers.ApiServer) -> None:
    kubectl = assets.assets_dir() / "kubectl"
    child = await asyncio.create_subprocess_exec(
        *(kubectl, "--kubeconfig", api_server.kubeconfig_path, "version", "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await child.communicate()
    told = json.loads(output)
    assert told["serverVersion"]["gitVersion"] == assets.version_of(assets.assets_dir())


async def test_service_accounts_get_tokens_that_are_believed(
    api_server: servers.ApiServer,
) -> None:
    base = "/api/v1/namespaces/default/serviceaccounts"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "daemon"}}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    async with servers.connect(api_server) as session:
        async with session.post(base, json=account) as response:
            assert response.status in (201, 409)
        async with session.post(f"{base}/daemon/token", json=request) as response:
            assert response.status == 201, await response.text()
            token = (await response.json())["status"]["token"]
    async with (
        servers.connect(api_server, token=token) as session,
        session.get("/api/v1/nodes") as response,
    ):
        # Known (not 401), but without any right.
        assert (await response.json())["reason"] == "Forbidden"
