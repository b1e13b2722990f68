"""What can be asked of a real API server of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import aiohttp
import pytest

from ccm.sandbox import realserver
from tests import servers

pytestmark = [pytest.mark.envtest]

NODES = "/api/v1/nodes"
STRANGER = realserver.User(name="stranger", token="stranger-token")
READER = realserver.User(name="reader", token="reader-token", groups=("readers",))


async def test_users_have_the_rights_that_rbac_gives_them(tmp_path: Path) -> None:
    async with realserver.open_real_apiserver(
        servers.require_assets(), tmp_path / "server", users=[STRANGER, READER]
    ) as server:
        async with servers.connect(server) as session:
            await _let_readers_read_nodes(session)
        for user, expected in ((STRANGER, 403), (READER, 200)):
            async with (
                servers.connect(server, token=user.token) as session,
                session.get(NODES) as response,
            ):
                assert response.status == expected, user


async def test_every_door_can_be_opened_and_requests_be_audited(tmp_path: Path) -> None:
    audit_log = tmp_path / "audit.log"
    async with (
        realserver.open_real_apiserver(
            servers.require_assets(),
            tmp_path / "server",
            users=[STRANGER],
            authorization_mode="AlwaysAllow",
            audit_log=audit_log,
            extra_args=["--watch-cache=false"],
        ) as server,
        servers.connect(server, token=STRANGER.token) as session,
        session.post(NODES, json={"metadata": {"name": "alpha"}}) as response,
    ):
        assert response.status == 201
    lines = [json.loads(line) for line in audit_log.read_text().splitlines()]
    [write] = [
        line
        for line in lines
        if line["verb"] == "create" and line["user"]["username"] == "stranger"
    ]
    assert write["requestObject"]["metadata"]["name"] == "alpha"


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    opening = realserver.open_real_apiserver(
        servers.require_assets(), tmp_path / "server", extra_args=["--no-such-flag"]
    )
    with pytest.raises(realserver.ServerStartError, match="unknown flag: --no-such-flag"):
        await opening.__aenter__()


async def test_missing_programs_are_named(tmp_path: Path) -> None:
    opening = realserver.open_real_apiserver(tmp_path, tmp_path / "server")
    with pytest.raises(realserver.ServerStartError, match="no etcd and no kube-apiserver"):
        await opening.__aenter__()


async def _let_readers_read_nodes(session: aiohttp.ClientSession) -> None:
    role = {
        "metadata": {"name": "readers"},
        "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}],
    }
    binding = {
        "metadata": {"name": "readers"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "readers",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "readers"}],
    }
    base = "/apis/rbac.authorization.k8s.io/v1"
    for plural, body in (("clusterroles", role), ("clusterrolebindings", binding)):
        async with session.post(f"{base}/{plural}", json=body) as response:
            assert response.status == 201, await response.text()
