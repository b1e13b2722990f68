"""The rights of `manifests` are sufficient for the daemon, and none is unused.

A real API server, its audit log, and daemons with their own service account. One story covers all
requests of a daemon; then the log is compared with the roles. The verb `list` is used only at an
older API server, which the proxy imitates: a newer one needs watches only.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from ccm.sandbox import process, realserver
from tests import pki, servers
from tests.faults import Exchange, FaultProxy, Match
from tests.manifests import account, shipped
from tests.scenario import harness
from tests.scenario.harness import Environment, refusal, wait_for
from tests.scenario.load import SERVICES, create, ingress, web

SERVICE_STATUS = Match(method="PATCH", path=f"^{SERVICES}/[^/]+/status$")
WATCH_LIST = Match(stream=True, query="sendInitialEvents=true")

FLAGS = {
    "controllers": "*",
    "cluster-cidr": "10.244.0.0/16",
    "route-reconciliation-period": "1s",
    "configure-cloud-routes": "true",
}

STRANGER = realserver.TokenUser(name="stranger", token="stranger-token-0123456789")

READER = "extension-apiserver-authentication-reader"

SURPLUS = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "update", "create"]}
"""A rule of which two verbs are never needed: the proof that such would be found."""

pytestmark = [pytest.mark.envtest, pytest.mark.timeout(240)]


@pytest.fixture
def audit_log(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest_asyncio.fixture
async def audited(tmp_path: Path, audit_log: Path) -> AsyncIterator[Environment]:
    """An environment with an API server of its own that writes down each request."""
    authority = pki.Authority(tmp_path, "users")
    opened = realserver.open_real_apiserver(
        servers.require_assets(),
        tmp_path / "server",
        users=[STRANGER],
        audit_log=audit_log,
        # As every cluster has one: only then does it publish whom it trusts.
        extra_args=[f"--client-ca-file={authority.file}"],
    )
    async with opened as server, harness.open_environment(server, tmp_path) as env:
        yield env


def requests(audit_log: Path, user: str = shipped.USER) -> list[dict[str, Any]]:
    """The requests of a user, each once."""
    entries = [json.loads(line) for line in audit_log.read_text().splitlines()]
    return list(
        {one["auditID"]: one for one in entries if one["user"]["username"] == user}.values()
    )


def unused(found: Sequence[shipped.Object], asked: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rights and bindings that no request needed."""
    rights = [
        str(right)
        for right in shipped.rights(found)
        if not any(right.covers(entry) for entry in asked)
    ]
    reasons = [entry["annotations"]["authorization.k8s.io/reason"] for entry in asked]
    names = [each["metadata"]["name"] for each in shipped.bindings(found)]
    return rights + [name for name in names if not any(f'"{name}' in why for why in reasons)]


def refused(asked: Sequence[Mapping[str, Any]]) -> list[str]:
    """Requests that were answered with 403."""
    return [
        f"{entry['verb']} {entry['requestURI']}"
        for entry in asked
        if entry["responseStatus"]["code"] == 403
    ]


async def test_the_shipped_rights_are_sufficient_and_all_used(
    audited: Environment, audit_log: Path
) -> None:
    """All controllers, two replicas, events, conflicts, a hand-over: no 403, no unused verb."""
    env = audited
    kubeconfig = str(env.folder / "daemon-0.kubeconfig")
    port = process.pick_port()
    serving = {
        "secure-port": str(port),
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
    }
    await nodes_services_and_routes(env, serving)
    assert await answer_to_a_stranger(port) == 403
    await repeated_events(env)
    await hand_over(env)

    found = shipped.objects(*shipped.identity_files())
    asked = requests(audit_log)
    assert refused(asked) == []
    # The journal's right to read ConfigMaps covers that of the public certificates, too.
    assert [name for name in unused(found, asked) if not name.endswith(READER)] == []
    surplus = {"kind": "ClusterRole", "metadata": {"name": "surplus"}, "rules": [SURPLUS]}
    assert len(unused([surplus], asked)) == 2


async def test_the_component_is_sufficient_for_separate_accounts(
    audited: Environment, audit_log: Path
) -> None:
    """Accounts are created, and use the controller roles of Kubernetes."""
    env = audited
    async with servers.connect(env.server) as administrator:
        await account.grant_separate_accounts(administrator)

    await nodes_services_and_routes(env, {"use-service-account-credentials": "true"})

    names = ("node-controller", "service-controller", "route-controller")
    theirs = [requests(audit_log, f"system:serviceaccount:kube-system:{name}") for name in names]
    assert all(theirs)
    assert [refused(asked) for asked in theirs] == [[], [], []]
    assert refused(requests(audit_log)) == []
    found = shipped.objects(shipped.SEPARATE_ACCOUNTS / "rbac.yaml")
    assert unused(found, requests(audit_log)) == []


async def nodes_services_and_routes(
    env: Environment, flags: Mapping[str, str] | None = None
) -> None:
    """All four controllers have something to do; an old API server and conflicts among it."""
    proxy = await env.new_proxy()
    proxy.on(WATCH_LIST, refusal(422, reason="Invalid"))
    proxy.on(harness.NODE_PATCH, refusal(409, reason="Conflict"), times=1)
    proxy.on(SERVICE_STATUS, refusal(409, reason="Conflict"), times=1)
    await env.start_leading(flags={**FLAGS, **(flags or {})}, proxy=proxy)
    await env.node("a", podCIDR="10.244.1.0/24", podCIDRs=["10.244.1.0/24"])
    await create(env, web("shop"))

    await env.cluster.initialised("a")
    await wait_for(lambda: has_address(env), "the Service has an address")
    await wait_for(lambda: has_route(env), "the node has its route")


async def answer_to_a_stranger(port: int) -> int:
    """Request metrics as an authenticated user without rights."""
    headers = {"Authorization": f"Bearer {STRANGER.token}"}
    connector = aiohttp.TCPConnector(ssl=pki.client_context())
    url = f"https://{process.LOOPBACK}:{port}/metrics"
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers) as session,
        session.get(url) as response,
    ):
        return response.status


async def repeated_events(env: Environment) -> None:
    """A node that cannot be deleted at once: the same event twice, and then its deletion."""
    rule = env.proxy.on(harness.NODE_DELETE, refusal(500))
    (machine,) = env.cloud.world.snapshot()
    env.cloud.world.delete(machine.id)
    await env.cluster.set_ready("a", "Unknown")

    await counted_up(env.proxy)
    env.proxy.remove(rule)
    await env.cluster.gone("a")


async def hand_over(env: Environment) -> None:
    """Stop the leader, so that its standby leads. A changed file is refused with an event."""
    (leader,) = env.daemons
    standby = await env.start(flags=FLAGS)
    await standby.says("new leader elected")
    assert await leader.stop() == 0
    await standby.says("became leader")
    machine = await env.node("b")
    await env.cluster.initialised("b")
    # A second deletion extends the record of the first leader.
    env.cloud.world.delete(machine.id)
    await env.cluster.set_ready("b", "Unknown")
    await env.cluster.gone("b")
    env.configure_cloud(token="wrong")
    await standby.says("changed file rejected, keeping the previous content")
    assert await standby.stop() == 0


async def counted_up(proxy: FaultProxy) -> list[Exchange]:
    """Wait for an event that is written again."""
    return await proxy.wait_for(Match(method="PATCH", path="/events/"), answered=True)


async def has_address(env: Environment) -> bool:
    return bool(ingress(await env.cluster.get(f"{SERVICES}/shop") or {"status": {}}))


async def has_route(env: Environment) -> bool:
    return harness.has_network(await env.cluster.node("a") or {})
