"""API servers for tests: the built-in one and the real one behind one face.

`api_server` gives a test either of them in turn, so that a scenario is proved
against both; see the marker `both_servers`. The servers are shared by all tests
of a pytest worker and wiped between tests; stopping one is allowed, it is
started again afterwards. A test whose server is not there is skipped with the
reason, and fails where `CI` is set: there nothing may be left out silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import aiohttp
import pytest
import pytest_asyncio

from ccm.sandbox import cluster, process, realserver
from tests import forkserver
from tests.envtest import assets
from tests.waiting import DEADLINE_S

BUILTIN = "builtin"
REAL = "real"

_BUILTIN_MODULE = "ccm.testing.apiserver"
# What tests leave behind, in the order in which it goes. Namespaced resources
# are listed over all namespaces and deleted one by one.
_WIPED = (
    "/api/v1/pods",
    "/api/v1/services",
    "/api/v1/nodes",
    "/api/v1/persistentvolumes",
    "/api/v1/persistentvolumeclaims",
    "/apis/policy/v1/poddisruptionbudgets",
    "/apis/storage.k8s.io/v1/volumeattachments",
    "/api/v1/events",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/apis/events.k8s.io/v1/events",
    "/apis/coordination.k8s.io/v1/leases",
)
# With them go all objects of their kinds, whose finalizers are lifted first.
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# The real server's own: its identity, what it tells of itself, and the service that stands for it.
_KEPT = (
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
    "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-",
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/apiserver-",
    "/api/v1/namespaces/default/services/kubernetes",
)


class ApiServer(Protocol):
    """An API server a test can use, stop and start; same port and objects afterwards."""

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end."""

    @property
    def token(self) -> str:
        """Bearer token of the administrator."""

    @property
    def ca_file(self) -> Path | None:
        """Certificates that prove it; None = plain http."""

    @property
    def kubeconfig_path(self) -> Path:
        """A kubeconfig of the administrator."""

    @property
    def is_running(self) -> bool:
        """Whether it has not been stopped."""

    async def start(self) -> None:
        """Start it again; nothing happens when it runs."""

    async def stop(self) -> None:
        """End it as an administrator would."""

    async def kill(self) -> None:
        """End it at once."""


class BuiltinServer:
    """The built-in API server as a process of its own, keeping its state in a folder."""

    def __init__(self, data_dir: Path, *, extra_args: Sequence[str] = ()) -> None:
        self.kubeconfig_path = data_dir / "kubeconfig"
        self.token = "builtin-admin"
        self.ca_file: Path | None = None
        self._port = process.pick_port()
        self._data_dir = data_dir
        self._extra_args = tuple(extra_args)
        self.state = data_dir / "state"
        """Folder with the objects."""
        self._child: process.Child | None = None

    @property
    def url(self) -> str:
        return f"http://{process.LOOPBACK}:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.exit_code is None

    async def start(self) -> None:
        if self.is_running:
            return
        self._data_dir.mkdir(parents=True, exist_ok=True)
        token_file = self._data_dir / "token"
        token_file.write_text(self.token)
        log = self._data_dir / "output.log"
        log.write_bytes(b"")
        self._child = forkserver.Child(
            [
                *(_BUILTIN_MODULE, "--port", str(self._port)),
                *("--data-dir", str(self.state), "--token-file", str(token_file)),
                *self._extra_args,
            ],
            log=log,
        )
        try:
            told = await cluster.until_ready(self._child, DEADLINE_S)
            assert told["url"] == self.url
            # Its answer comes after the end of the connections to the server before it, which
            # clients of this event loop would else take for open and send a POST on.
            async with connect(self) as session, session.get("/readyz") as response:
                assert response.status == 200
        except BaseException:
            await self.kill()
            raise
        realserver.write_kubeconfig(self.kubeconfig_path, url=self.url, token=self.token)

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop(grace_s=10)
        self._child = None

    async def kill(self) -> None:
        if self._child is not None:
            await self._child.kill()
        self._child = None


class _HangsUp(aiohttp.ClientResponse):
    """Leaves an unfinished answer (a watch, a body nobody read) at once.

    Leaving politely takes a round trip under TLS, which a test's event loop may not
    live to see; the transport would then be found unclosed.
    """

    async def __aexit__(self, *trouble: Any) -> None:
        if self.connection is not None and self.connection.transport is not None:
            self.connection.transport.abort()
        await super().__aexit__(*trouble)


@contextlib.asynccontextmanager
async def connect(
    server: ApiServer | cluster.ApiServer, *, token: str | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """A bare HTTP session with the server: paths are enough, the token is sent.

    Args:
        server: the server.
        token: another user's token; None = the administrator's.
    """
    trust = ssl.create_default_context(cafile=server.ca_file) if server.ca_file else True
    headers = {"Authorization": f"Bearer {server.token if token is None else token}"}
    async with aiohttp.ClientSession(
        server.url,
        connector=aiohttp.TCPConnector(ssl=trust),
        headers=headers,
        response_class=_HangsUp,
    ) as session:
        yield session


async def wipe(server: ApiServer) -> None:
    """Delete what tests leave behind, finalizers or not."""
    async with connect(server) as session, asyncio.timeout(DEADLINE_S):
        for path in (*_WIPED, *await _custom(session), _DEFINITIONS):
            while leftovers := await _leftovers(session, path):
                for item in leftovers:
                    await _destroy(session, item)


async def _custom(session: aiohttp.ClientSession) -> list[str]:
    """Paths of the resources that are defined by tests."""
    async with session.get(_DEFINITIONS) as response:
        assert response.status == 200, await response.text()
        specs = [one["spec"] for one in (await response.json())["items"] or ()]
    return [
        f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
        for spec in specs
        for version in spec["versions"]
        if version["served"]
    ]


async def _leftovers(session: aiohttp.ClientSession, path: str) -> list[str]:
    """Paths of the objects of one resource that belong to tests."""
    async with session.get(path) as response:
        if response.status == 404:
            return []
        assert response.status == 200, await response.text()
        listing = await response.json()
    group, plural = path.rsplit("/", 1)
    found = []
    for item in listing["items"] or ():
        meta = item["metadata"]
        space = f"/namespaces/{meta['namespace']}" if meta.get("namespace") else ""
        found.append(f"{group}{space}/{plural}/{meta['name']}")
    return [item for item in found if not item.startswith(_KEPT)]


async def _destroy(session: aiohttp.ClientSession, path: str) -> None:
    """Delete one object without grace, and lift the finalizers that hold it."""
    async with session.delete(path, json={"gracePeriodSeconds": 0}) as response:
        assert response.status in (200, 202, 404), await response.text()
        held = (await response.json()).get("metadata", {}).get("finalizers")
    if held and not path.startswith(_DEFINITIONS):  # the server lifts its own
        media_type = "application/merge-patch+json"
        patch = json.dumps({"metadata": {"finalizers": None}})
        async with session.patch(
            path, data=patch, headers={"Content-Type": media_type}
        ) as response:
            assert response.status in (200, 404), await response.text()


def require_assets() -> Path:
    """The folder with the real programs; skips (fails with CI set) without them."""
    folder = assets.assets_dir()
    if missing := assets.missing_programs(folder):
        leave_out(
            f"{folder} has no {', '.join(missing)}; run `python -m tests.envtest.assets` first"
        )
    return folder


def assets_of(version: str) -> Path:
    """The folder with the kube-apiserver of a version; skips (fails with CI set) without it."""
    try:
        return assets.ensure_version(version)
    except assets.AssetsError as trouble:
        leave_out(str(trouble))


def require_builtin() -> None:
    """Skip (fail with CI set) without the built-in server."""
    if importlib.util.find_spec(_BUILTIN_MODULE) is None or (
        importlib.util.find_spec(f"{_BUILTIN_MODULE}.__main__") is None
    ):
        leave_out(f"`python -m {_BUILTIN_MODULE}` is not there")


def leave_out(reason: str) -> NoReturn:
    """Skip (fail with CI set)."""
    if os.environ.get("CI"):
        pytest.fail(f"nothing may be skipped where CI is set: {reason}", pytrace=False)
    pytest.skip(reason)


# One server is enough for all workers of a run: each costs as much as a hundred tests.
_ON_REAL = [pytest.mark.envtest, pytest.mark.xdist_group("real-server")]

# The processes of a shared server belong to no event loop, so one test may start
# them and others use, stop and start them, each in a loop of its own.


@pytest.fixture(scope="session")
def shared_real_server(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[realserver.RealServer]:
    """The worker's real API server, not started yet."""
    server = realserver.RealServer(
        assets=require_assets(), data_dir=tmp_path_factory.mktemp("real-server")
    )
    yield server
    asyncio.run(server.kill())


@pytest.fixture(scope="session")
def shared_builtin_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltinServer]:
    """The worker's built-in API server, not started yet."""
    require_builtin()
    server = BuiltinServer(tmp_path_factory.mktemp("builtin-server"))
    yield server
    asyncio.run(server.kill())


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what takes `api_server` on both; on the real one only in soak, unless marked."""
    definition = metafunc.definition
    chosen = any("api_server" in mark.args[0] for mark in definition.iter_markers("parametrize"))
    if "api_server" in metafunc.fixturenames and not chosen:
        marked = definition.get_closest_marker("both_servers") is not None
        marks = _ON_REAL if marked else [*_ON_REAL, pytest.mark.soak]
        twins = [BUILTIN, pytest.param(REAL, marks=marks)]
        metafunc.parametrize("api_server", twins, indirect=True)


only_builtin = pytest.mark.parametrize("api_server", [BUILTIN], indirect=True)
only_real = pytest.mark.parametrize(
    "api_server", [pytest.param(REAL, marks=_ON_REAL)], indirect=True
)


@pytest_asyncio.fixture
async def api_server(request: pytest.FixtureRequest) -> AsyncIterator[ApiServer]:
    """Each API server in turn: running and empty; see also `only_builtin` and `only_real`."""
    server: ApiServer = request.getfixturevalue(f"shared_{request.param}_server")
    await server.start()
    await wipe(server)
    yield server


@pytest_asyncio.fixture
async def real_server(tmp_path: Path) -> AsyncIterator[realserver.RealServer]:
    """A real API server of the test's own, for whatever would disturb others."""
    async with realserver.open_real_apiserver(require_assets(), tmp_path / "server") as server:
        yield server
