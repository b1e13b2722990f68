"""Secrets in a cluster: what the API server does with them, the built-in one and the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ccm.app.clients import ProviderClient
from ccm.kube.client import Client
from ccm.kube.config import load
from ccm.kube.transport import Transport
from ccm.persistence import errors, kubesecrets
from ccm.persistence.envelope import Writer
from ccm.persistence.kubesecrets import KubernetesSecretStore
from ccm.persistence.registry import Context
from ccm.persistence.secrets import RotationReport
from ccm.testing.persistence_harness import HERE
from tests import servers

SPACE = "kube-system"
DATA = {"token": b"needle-in-the-hay-2207", "binary": bytes(range(256))}


@asynccontextmanager
async def opened(server: servers.ApiServer, epoch: int) -> AsyncIterator[KubernetesSecretStore]:
    cluster = load(str(server.kubeconfig_path), "", environ={})
    writer = Writer(identity="test", epoch=epoch)
    async with Transport(cluster) as transport:
        requests = ProviderClient(Client(transport))
        store = KubernetesSecretStore(requests, SPACE, Context(writer=lambda: writer))
        await store.initialize(HERE)
        try:
            yield store
        finally:
            await store.close()


@pytest.mark.both_servers
async def test_life(api_server: servers.ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages, rotation, a newer leader, one that is somebody else's, and what is deleted."""
    monkeypatch.setattr(kubesecrets, "PAGE", 2)
    async with opened(api_server, 3) as old, opened(api_server, 4) as new:
        (instance,) = old.instances()
        keys = [await old.put_secret(instance, f"n{at}", DATA) for at in range(5)]
        assert sorted(await old.list_secrets(instance)) == sorted(keys)
        assert await new.get_secret(instance, keys[0]) == DATA
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
        assert refused == [f"Secret {names[0]} is somebody else's; it is left alone"]
        await _unlabel(api_server, names[0], label="secret")
        for key in keys:
            await new.delete_secret(instance, key)
            await new.delete_secret(instance, key)
        assert await new.list_secrets(instance) == []
        assert await new.get_secret(instance, keys[0]) is None
    assert await _names(api_server) == []


async def _names(server: servers.ApiServer) -> list[str]:
    path = f"/api/v1/namespaces/{SPACE}/secrets"
    async with servers.connect(server) as session, session.get(path) as answer:
        found = (await answer.json())["items"] or []
    return [one["metadata"]["name"] for one in found if one["metadata"]["name"].startswith("ccm-")]


async def _unlabel(server: servers.ApiServer, name: str, label: str | None = None) -> None:
    async with (
        servers.connect(server) as session,
        session.patch(
            f"/api/v1/namespaces/{SPACE}/secrets/{name}",
            json={"metadata": {"labels": {kubesecrets.LABEL: label}}},
            headers={"Content-Type": "application/merge-patch+json"},
        ) as answer,
    ):
        assert answer.status == 200, await answer.text()
