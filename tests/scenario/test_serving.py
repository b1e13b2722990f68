"""Access to the daemon's HTTPS server: all callers times all endpoints, on a real cluster."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from ccm.cli import explain
from ccm.doctor import ExaminationError
from ccm.sandbox import process, realserver
from tests import pki, servers
from tests.scenario import harness
from tests.scenario.forwarding import open_kubelet, pod_of_this_machine
from tests.scenario.harness import Daemon, Environment, write_kubeconfig

pytestmark = pytest.mark.envtest

STRANGER = realserver.TokenUser(name="stranger", token="stranger-token-0123456789")
SCRAPER = realserver.TokenUser(
    name="scraper", token="scraper-token-0123456789", groups=("scrapers",)
)

PATHS: Mapping[str, str] = {
    "/healthz": "open",
    "/livez": "open",
    "/readyz": "open",
    "/healthz/ping": "guarded",
    "/livez/ping": "guarded",
    "/readyz/api-server": "guarded",
    "/metrics": "guarded",
    "/metrics/slis": "guarded",
    "/configz": "guarded",
    "/explain?kind=node&name=n1": "guarded",
    "/journal": "guarded",
    "/": "nowhere",
    "/nothing/here": "nowhere",
}
"""Endpoints by what a GET meets: everyone is let in; one needs rights; it does not exist, which
one learns with rights only."""

OUTCOMES: Mapping[str, Mapping[str, int]] = {
    "nobody": {"open": 200, "guarded": 403, "nowhere": 403},
    "wrong": {"open": 401, "guarded": 401, "nowhere": 401},
    "trusted": {"open": 200, "guarded": 200, "nowhere": 404},
}

CALLERS: Mapping[str, str] = {
    "anonymous": "nobody",
    "a wrong token": "wrong",
    "a token without rights": "nobody",
    "a token with rights": "trusted",
    "a member of system:masters by token": "trusted",
    "a client certificate without rights": "nobody",
    "a client certificate with rights": "trusted",
    "a client certificate of system:masters": "trusted",
    "a client certificate and a wrong token": "trusted",
    "a trusted proxy for a user with rights": "trusted",
    "a trusted proxy for a user without rights": "nobody",
    "a proxy's certificate without a user": "wrong",
    "a proxy of another name": "wrong",
    "headers without a proxy's certificate": "nobody",
}
"""Caller -> expected access."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Credentials of a caller."""

    certificate: pki.Files | None = None
    headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """A cluster with authorities, and a daemon whose server can be asked."""

    env: Environment
    daemon: Daemon
    url: str
    callers: Mapping[str, Caller]

    def connect(self, caller: Caller) -> aiohttp.ClientSession:
        """Open a session of a caller."""
        files = caller.certificate
        trust = files.context() if files else pki.client_context()
        return aiohttp.ClientSession(
            self.url, connector=aiohttp.TCPConnector(ssl=trust), headers=caller.headers
        )

    async def ask(
        self, path: str, caller: Caller, *, method: str = "GET", body: str | None = None
    ) -> tuple[int, str]:
        """Status and body of one answer."""
        async with (
            self.connect(caller) as session,
            session.request(method, path, data=body) as response,
        ):
            return response.status, await response.text()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A real API server that believes two authorities."""

    server: realserver.RealServer
    callers: Mapping[str, Caller]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster of all tests here; its processes belong to no event loop."""
    folder = tmp_path_factory.mktemp("cluster")
    users, proxies = pki.Authority(folder, "users"), pki.Authority(folder, "proxies")
    server = realserver.RealServer(
        assets=servers.require_assets(),
        data_dir=folder / "server",
        users=[STRANGER, SCRAPER],
        extra_args=[
            f"--client-ca-file={users.file}",
            f"--requestheader-client-ca-file={proxies.file}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        ],
    )
    asyncio.run(server.start())
    verbs = ["get", "put", "delete", "post"]
    asyncio.run(grant(server, "scrape", [{"nonResourceURLs": ["*"], "verbs": verbs}]))
    yield Cluster(server=server, callers=callers(users, proxies, server.token))
    asyncio.run(server.kill())


@pytest_asyncio.fixture
async def around(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Surroundings]:
    """A daemon that asks a real API server about its callers."""
    await servers.wipe(cluster.server)
    async with harness.open_environment(cluster.server, tmp_path) as env:
        port = process.pick_port()
        kubeconfig = str(cluster.server.kubeconfig_path)
        daemon = await env.start(
            flags={
                "secure-port": str(port),
                "bind-address": process.LOOPBACK,
                "authentication-kubeconfig": kubeconfig,
                "authorization-kubeconfig": kubeconfig,
            }
        )
        await daemon.says("serving")
        await daemon.says("became leader")
        yield Surroundings(
            env=env,
            daemon=daemon,
            url=f"https://{process.LOOPBACK}:{port}",
            callers=cluster.callers,
        )


def callers(users: pki.Authority, proxies: pki.Authority, admin: str) -> Mapping[str, Caller]:
    """Callers by the names of `CALLERS`."""
    scraper = users.client("scraper-by-certificate", ["scrapers"])
    front = proxies.client("front-proxy")
    for_scraper = {"X-Remote-User": "far-scraper", "X-Remote-Group": "scrapers"}
    return {
        "anonymous": Caller(),
        "a wrong token": bearer("no-such-token"),
        "a token without rights": bearer(STRANGER.token),
        "a token with rights": bearer(SCRAPER.token),
        "a member of system:masters by token": bearer(admin),
        "a client certificate without rights": Caller(certificate=users.client("stranger")),
        "a client certificate with rights": Caller(certificate=scraper),
        "a client certificate of system:masters": Caller(
            certificate=users.client("root", ["system:masters"])
        ),
        "a client certificate and a wrong token": Caller(
            certificate=scraper, headers=bearer("no-such-token").headers
        ),
        "a trusted proxy for a user with rights": Caller(certificate=front, headers=for_scraper),
        "a trusted proxy for a user without rights": Caller(
            certificate=front, headers={"X-Remote-User": "far-stranger"}
        ),
        "a proxy's certificate without a user": Caller(certificate=front),
        "a proxy of another name": Caller(
            certificate=proxies.client("back-proxy"), headers=for_scraper
        ),
        "headers without a proxy's certificate": Caller(headers=for_scraper),
    }


def bearer(token: str) -> Caller:
    """A user with a token."""
    return Caller(headers={"Authorization": f"Bearer {token}"})


async def grant(server: servers.ApiServer, name: str, rules: Any, namespace: str = "") -> None:
    """Members of the group `scrapers` may do this, in one namespace or in all."""
    kind = "Role" if namespace else "ClusterRole"
    group = "rbac.authorization.k8s.io"
    path = f"/apis/{group}/v1" + (f"/namespaces/{namespace}" if namespace else "")
    reference = {"apiGroup": group, "kind": kind, "name": name}
    subjects = [{"apiGroup": group, "kind": "Group", "name": "scrapers"}]
    role = {"metadata": {"name": name}, "rules": rules}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
    async with servers.connect(server) as session:
        for what, made in ((kind, role), (f"{kind}Binding", binding)):
            async with session.post(f"{path}/{what.lower()}s", json=made) as response:
                assert response.status in (201, 409), await response.text()


@pytest.mark.row("serving-matrix-01", "serving-matrix-02", "serving-matrix-03")
async def test_every_caller_can_access_only_permitted_endpoints(around: Surroundings) -> None:
    assert around.callers.keys() == CALLERS.keys()
    # The cluster's own settings arrive a moment after the port is open.
    scraper = around.callers["a client certificate with rights"]
    await harness.wait_for(lambda: knows(around, scraper), "client certificates are known")

    wrong = {}
    for name, caller in around.callers.items():
        async with around.connect(caller) as session:
            for path, kind in PATHS.items():
                expected = OUTCOMES[CALLERS[name]][kind]
                async with session.get(path) as response:
                    if response.status != expected:
                        wrong[f"{name}: {path}"] = (response.status, await response.text())
                    assert response.headers["Cache-Control"] == "no-cache, private"
    assert wrong == {}


async def knows(around: Surroundings, caller: Caller) -> bool:
    """Whether the server lets this caller have the metrics."""
    try:
        return (await around.ask("/metrics", caller))[0] == 200
    except aiohttp.ClientError:
        return False


@pytest.mark.row("serving-matrix-04")
async def test_refusals_have_the_format_of_the_api_server(around: Surroundings) -> None:
    forbidden = await around.ask("/metrics", around.callers["anonymous"])
    unknown = await around.ask("/metrics", around.callers["a wrong token"])
    named = await around.ask("/configz", around.callers["a token without rights"])
    posted = await around.ask(
        "/configz", around.callers["a token without rights"], method="POST", body="x"
    )

    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    words = 'forbidden: User "system:anonymous" cannot get path "/metrics"'
    refusal = {"message": words, "reason": "Forbidden", "details": {}, "code": 403}
    assert json.loads(forbidden[1]) == status | refusal
    wrong = {"message": "Unauthorized", "reason": "Unauthorized", "code": 401}
    assert json.loads(unknown[1]) == status | wrong
    assert 'User "stranger" cannot get path "/configz"' in json.loads(named[1])["message"]
    assert 'User "stranger" cannot post path "/configz"' in json.loads(posted[1])["message"]


@pytest.mark.row("serving-tls-05")
async def test_a_client_certificate_of_an_unknown_ca_ends_the_connection(
    around: Surroundings, tmp_path: Path
) -> None:
    scraper = around.callers["a client certificate with rights"]
    await harness.wait_for(lambda: knows(around, scraper), "client certificates are known")
    folder = tmp_path / "others"
    folder.mkdir()
    unknown = pki.Authority(folder, "nobody-knows").client("scraper", ["scrapers"])

    with pytest.raises(aiohttp.ClientError):
        await around.ask("/healthz", Caller(certificate=unknown))
    assert (await around.ask("/healthz", around.callers["anonymous"]))[0] == 200


async def explained(around: Surroundings, *words: str, **user: str) -> tuple[int, list[str]]:
    """Exit status and output of `kube-ccm explain` for a user."""
    kubeconfig = around.env.folder / "caller.kubeconfig"
    server = around.env.server
    write_kubeconfig(kubeconfig, server.url, user, ca_file=server.ca_file)
    said = io.StringIO()
    wanted = explain.read([f"--kubeconfig={kubeconfig}", *words])
    try:
        code = await explain.explain_object(wanted, said, environ={})
    except ExaminationError:
        code = 1
    return code, said.getvalue().splitlines()


async def test_explain_authenticates_its_caller_through_a_port_forward(
    around: Surroundings, tmp_path: Path
) -> None:
    """By token or client certificate: TLS reaches from the command to the daemon."""
    env, port = around.env, around.url.rpartition(":")[2]
    env.machine("other")
    await env.cluster.register("n1")
    async with open_kubelet(tmp_path) as (kubelet, kubelet_port):
        await pod_of_this_machine(env.cluster, kubelet_port, f"--secure-port={port}")
        scraper = around.callers["a client certificate of system:masters"]
        await harness.wait_for(lambda: knows(around, scraper), "client certificates are known")
        assert scraper.certificate is not None
        shown = scraper.certificate
        certificate = {"client-certificate": str(shown.chain), "client-key": str(shown.key)}

        # Rights that `kube-ccm explain` documents.
        objects = [{"apiGroups": [""], "resources": ["nodes", "services"], "verbs": ["get"]}]
        way = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create", "get"]},
        ]
        await grant(env.server, "explain", objects)
        await grant(env.server, "explain", way, "kube-system")
        for user in ({"token": SCRAPER.token}, certificate):
            code, (first, *others) = await explained(around, "node", "n1", **user)
            assert code == 3
            assert first.startswith("n1 is not initialised: NotFound: ")
            assert "  owner: this daemon (provider sim)" in others
        stranger = await explained(around, "node", "n1", token=STRANGER.token)
        _, (refused, *_) = await explained(around, "node", "n1", "--secure-port=1", **certificate)

    assert kubelet.asked[:2] == [f"/portForward/kube-system/ccm-0?port={port}"] * 2
    assert stranger == (1, [])
    assert "querying the leader failed: Pod ccm-0, port 1: cannot connect" in refused


async def test_explain_verifies_the_daemon_unless_it_is_insecure(
    around: Surroundings,
) -> None:
    await around.env.cluster.register("n1")
    token = around.env.server.token
    way = f"--address={around.url.removeprefix('https://')}"

    _, (believed, *_) = await explained(around, "node", "n1", way, "--insecure", token=token)
    ca = f"--ca={around.env.server.ca_file}"
    _, (verified, *_) = await explained(around, "node", "n1", way, ca, token=token)

    assert believed.startswith("n1 is not initialised: NotFound: ")
    unasked = "n1 is not initialised: the reason is unknown, because querying the leader failed: "
    assert verified.startswith(unasked)
    assert "certificate" in verified


GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.txt"
OURS = ("ccm_", "mcm_", "cloud_", "cloudprovider_", "hcloud_", "machine_", "openstack_")
STABLE = ("running_", "workqueue_", "kubernetes_", "registered_", "disabled_", "hidden_")


@pytest.mark.row("serving-metrics-01")
async def test_the_metrics_of_the_go_reference_are_served(around: Surroundings) -> None:
    """All metrics of the golden file, with their types and, in the help text, their stability."""
    caller = around.callers["a token with rights"]
    await around.ask("/metrics", caller)  # some are counted by the first request
    wanted = {
        name: (kind, "[BETA]" if name.startswith(STABLE) else "[ALPHA]")
        for name, kind, *_ in map(str.split, GOLDEN.read_text().splitlines())
        if not name.startswith(OURS)
    }

    _, text = await around.ask("/metrics", caller)

    lines = text.splitlines()
    kinds = dict(line.split(" ")[2:4] for line in lines if line.startswith("# TYPE "))
    helps = [line.split(" ")[2:4] for line in lines if line.startswith("# HELP ")]
    assert {name: (kinds[name], word) for name, word in helps if name in wanted} == wanted
    assert len(wanted) == 36
    assert 'running_managed_controllers{manager="cloud-controller-manager",name="cloud-node"}' in (
        text
    )
    assert 'authenticated_user_requests{username="other"}' in text
