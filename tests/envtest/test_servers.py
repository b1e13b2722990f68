"""Both API servers keep objects and Secrets alike."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ccm.app.clients import ProviderClient
from ccm.base.metrics import REGISTRY
from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube import resources
from ccm.kube.client import Client
from ccm.kube.config import load
from ccm.kube.errors import NotFound
from ccm.kube.informer import Informer
from ccm.kube.transport import Transport
from ccm.persistence import errors, kubesecrets, kubestore
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.interface import ABSENT
from ccm.persistence.kubestore import ANNOTATION, LABEL, KubernetesConfig
from ccm.persistence.registry import BackendContext, BackendFactory
from ccm.persistence.secrets import RotationReport
from ccm.sandbox import realserver
from ccm.testing.persistence_contract import KIND, thing
from ccm.testing.persistence_harness import HERE
from tests import servers
from tests.envtest import assets
from tests.waiting import DEADLINE_S

NODES = "/api/v1/nodes"


async def create(session: aiohttp.ClientSession, name: str, **meta: Any) -> dict[str, Any]:
    async with session.post(NODES, json={"metadata": {"name": name, **meta}}) as response:
        assert response.status == 201, await response.text()
        return dict(await response.json())


@pytest.mark.both_servers
@pytest.mark.parametrize("way", ["stop", "kill"])
async def test_objects_survive_a_restart_of_the_api_server(
    api_server: servers.ApiServer, way: str
) -> None:
    async with servers.connect(api_server) as session:
        made = await create(session, "alpha")
    await (api_server.stop() if way == "stop" else api_server.kill())
    assert not api_server.is_running
    await api_server.start()
    async with servers.connect(api_server) as session, session.get(f"{NODES}/alpha") as response:
        assert (await response.json())["metadata"]["uid"] == made["metadata"]["uid"]


@pytest.mark.both_servers
async def test_informer_starts_by_watch_list(api_server: servers.ApiServer) -> None:
    """No response holds all objects, so neither side has the whole list in memory."""
    async with servers.connect(api_server) as session:
        for number in range(20):
            await create(session, f"node-{number}")
    async with Transport(load(str(api_server.kubeconfig_path), "", environ={})) as transport:
        # The URL distinguishes the servers' series of the metric.
        informer = Informer(Client(transport).resource(resources.NODES), resource=api_server.url)
        running = spawn(informer.run(), name="informer")
        try:
            await informer.wait_synced(DEADLINE_S)
        finally:
            await cancel_and_join(running)

    assert {f"node-{number}" for number in range(20)} <= set(informer.store.keys())
    modes = {
        mode: REGISTRY.get_sample_value(
            "ccm_kube_lists_total", {"resource": api_server.url, "mode": mode}
        )
        for mode in ("watch-list", "pages")
    }
    assert modes == {"watch-list": 1.0, "pages": None}


@pytest.mark.envtest
async def test_a_real_server_that_cannot_start_reports_the_cause(tmp_path: Path) -> None:
    for folder, words, said in (
        (servers.require_assets(), ["--no-such-flag"], "unknown flag: --no-such-flag"),
        (tmp_path, [], "missing etcd and kube-apiserver"),
    ):
        opening = realserver.open_real_apiserver(folder, tmp_path / "server", extra_args=words)
        with pytest.raises(realserver.ServerStartError, match=said):
            await opening.__aenter__()


@pytest.mark.soak
@pytest.mark.envtest
@pytest.mark.timeout(3600)  # the first time the server has to be built
@pytest.mark.parametrize("version", assets.OTHER_VERSIONS)
def test_another_version_of_the_api_server_passes_the_same_tests(version: str) -> None:
    """All but `tests/kubectl`, which compares the built-in server with the pinned one."""
    folder = servers.assets_of(version)
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    assert assets.version_of(folder) == version

    ended = subprocess.run(
        [*tests, "-m", "envtest and not soak", "--ignore=tests/kubectl", "tests"],
        cwd=assets.ROOT,
        env={**os.environ, "KUBEBUILDER_ASSETS": str(folder), "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout
    counted = re.search(r"(\d+) passed", ended.stdout)
    assert counted, ended.stdout
    assert int(counted[1]) >= 100


async def shows_fairness(kubeconfig: Path, path: str) -> bool:
    """Whether the response to a single request shows that the server has Priority and Fairness."""
    async with Transport(load(str(kubeconfig), "", environ={})) as transport:
        with contextlib.suppress(NotFound):
            await Client(transport).raw("GET", path)
        return transport.has_fairness


@pytest.mark.both_servers
@pytest.mark.parametrize("path", [NODES, f"{NODES}/absent", "/version", "/none"])
async def test_any_response_shows_priority_and_fairness(
    api_server: servers.ApiServer, path: str
) -> None:
    assert await shows_fairness(api_server.kubeconfig_path, path)


@pytest.mark.envtest
async def test_server_without_priority_and_fairness_shows_none(tmp_path: Path) -> None:
    off = ["--enable-priority-and-fairness=false"]
    async with realserver.open_real_apiserver(
        servers.require_assets(), tmp_path / "server", extra_args=off
    ) as server:
        assert not await shows_fairness(server.kubeconfig_path, NODES)


SPACE, LEASE = "kube-system", "cloud-controller-manager"


DATA = {"token": b"needle-in-the-hay-2207", "binary": bytes(range(256))}


@asynccontextmanager
async def opened(
    server: servers.ApiServer, epoch: int, make: BackendFactory = kubesecrets.storage
) -> AsyncIterator[Any]:
    cluster = load(str(server.kubeconfig_path), "", environ={})
    writer = WriterIdentity(identity="test", epoch=epoch)
    async with Transport(cluster) as transport:
        context = BackendContext(
            writer=lambda: writer, requests=ProviderClient(Client(transport)), namespace=SPACE
        )
        store = make([KubernetesConfig()], context)
        await store.initialize(HERE)
        try:
            yield store
        finally:
            await store.close()


@pytest.mark.both_servers
async def test_the_secret_store_pages_rotates_fences_and_deletes(
    api_server: servers.ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small pages, rotation, a newer leader, a Secret without its label, and deletion."""
    monkeypatch.setattr(kubestore, "PAGE", 2)
    async with opened(api_server, 3) as old, opened(api_server, 4) as new:
        (instance,) = old.instances()
        keys = [await new.put_secret(instance, f"n{at}", DATA) for at in range(5)]
        assert sorted(await old.list_secrets(instance)) == sorted(keys)
        assert await old.get_secret(instance, keys[0]) == DATA
        assert await new.rotate(instance) == RotationReport(rewritten=5)
        assert await new.get_secret(instance, keys[4]) == DATA

        with pytest.raises(errors.Fenced):
            await old.put_secret(instance, "n0", {})
        with pytest.raises(errors.Fenced):
            await old.delete_secret(instance, keys[0])

        names = await _names(api_server)
        assert len(names) == 5
        await _unlabel(api_server, names[0])
        refused = []
        for key in keys:
            try:
                await new.delete_secret(instance, key)
            except errors.CorruptObject as error:
                refused.append(str(error))
        assert refused == [f"Secret {names[0]} lacks the label {LABEL}={LEASE} and was not changed"]
        await _unlabel(api_server, names[0], label=LEASE)
        for key in keys:
            await new.delete_secret(instance, key)
            await new.delete_secret(instance, key)
        assert await new.list_secrets(instance) == []
        assert await new.get_secret(instance, keys[0]) is None
    assert await _names(api_server) == []


@pytest.mark.both_servers
async def test_objects_in_config_maps_page_conflict_fence_and_have_a_limit(
    api_server: servers.ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of the largest size that does not compress well is accepted."""
    monkeypatch.setattr(kubestore, "PAGE", 2)
    make = kubestore.storage
    async with opened(api_server, 3, make) as old, opened(api_server, 4, make) as new:
        (instance,) = old.instances()
        for at in range(5):
            await new.put_versioned(instance, thing(f"n{at}"), expect=ABSENT)
        assert len(await old.get_all_objects(instance, KIND)) == 5
        for expect in (ABSENT, "1", "never"):
            with pytest.raises(errors.VersionConflict):
                await new.put_versioned(instance, thing("n0"), expect=expect)
        with pytest.raises(errors.Fenced):
            await old.put_object(instance, thing("n9"))

        noise = "".join(map(chr, random.Random(1).choices(range(0x10000, 0x1FFFF), k=240_000)))
        await new.put_object(instance, thing("n0", fill=noise))
        assert await old.get_object(instance, KIND, "default/n0") == thing("n0", fill=noise)
        with pytest.raises(errors.ObjectTooLarge):
            await new.put_object(instance, thing("n0", fill="x" * 1_000_000))
        for at in range(5):
            await new.delete_object(instance, KIND, f"default/n{at}")
        assert await new.get_all_objects(instance, KIND) == []
    assert await _names(api_server, "configmaps") == []


async def _names(server: servers.ApiServer, plural: str = "secrets") -> list[str]:
    """Names of stored objects; the marker of a store has no annotation."""
    path = f"/api/v1/namespaces/{SPACE}/{plural}"
    async with servers.connect(server) as session, session.get(path) as answer:
        found = (await answer.json())["items"] or []
    return [
        one["metadata"]["name"]
        for one in found
        if ANNOTATION in one["metadata"].get("annotations", {})
    ]


async def _unlabel(server: servers.ApiServer, name: str, label: str | None = None) -> None:
    async with (
        servers.connect(server) as session,
        session.patch(
            f"/api/v1/namespaces/{SPACE}/secrets/{name}",
            json={"metadata": {"labels": {LABEL: label}}},
            headers={"Content-Type": "application/merge-patch+json"},
        ) as answer,
    ):
        assert answer.status == 200, await answer.text()
