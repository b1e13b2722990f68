"""Clusters beside our own: what is opened, and whose nodes count."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ccm.app import clients, controllers, options
from ccm.app.provider import Misconfigured
from ccm.kube.informer import Informers
from ccm.kube.resources import NODES
from ccm.runtime.manifest import ClusterContext
from ccm.sandbox.realserver import write_kubeconfig

NOWHERE = "http://127.0.0.1:1"


def chosen(*words: str) -> options.Options:
    return options.parse(["--cloud-provider=sim", *words])


def kubeconfig(folder: Path, name: str) -> str:
    path = folder / name
    write_kubeconfig(path, url=NOWHERE, token="t")
    return str(path)


async def test_one_file_is_one_cluster_whatever_it_is_to_controllers(tmp_path: Path) -> None:
    both = kubeconfig(tmp_path, "both")
    given = chosen("--kubeconfig=own", f"--target-kubeconfig={both}")
    async with clients.other_clusters(given, {}) as found:
        (one,) = found
        assert list(one.roles) == ["control", "target"]
        assert one.transport.user_agent.startswith("cloud-controller-manager/")
        assert list(one.since) == [Path(both)]
        assert one.source.path == Path(both)


async def test_two_files_are_two_clusters(tmp_path: Path) -> None:
    words = [f"--{role}-kubeconfig={kubeconfig(tmp_path, role)}" for role in ("control", "target")]
    async with clients.other_clusters(chosen(*words), {}) as found:
        assert [list(one.roles) for one in found] == [["control"], ["target"]]
        contexts = [one.context(0.0) for one in found]
        assert contexts[0].informers is not contexts[1].informers


async def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    words = ["--kubeconfig=own", f"--control-kubeconfig={tmp_path / 'absent'}"]
    with pytest.raises(Misconfigured, match=r"--control-kubeconfig=.*absent"):
        async with clients.other_clusters(chosen(*words), {}):
            pass


async def test_credentials_of_another_cluster_are_followed(tmp_path: Path) -> None:
    """A refused file leaves the former in use; the source is one like any other."""
    from ccm.app.reload import Refused

    file = kubeconfig(tmp_path, "t")
    words = ["--kubeconfig=own", f"--target-kubeconfig={file}"]
    async with clients.other_clusters(chosen(*words), {}) as found:
        write_kubeconfig(Path(file), url="http://127.0.0.1:2", token="t")
        with pytest.raises(Refused, match="it names another server"):
            await found[0].source.use()


@pytest.mark.parametrize(
    ("words", "others", "wanted"),
    [
        (["--controllers=*"], [], "own"),
        (["--controllers=*,machine"], ["target"], "own"),
        (["--controllers=machine"], [], "own"),
        (["--controllers=machine"], ["target"], "target"),
        (["--controllers=machine"], ["control"], "own"),
        (["--controllers=machine", "--target-kubeconfig=none"], [], None),
    ],
)
async def test_whose_nodes_the_provider_is_told_of(
    words: list[str], others: list[str], wanted: str | None
) -> None:
    made: dict[str, Any] = {name: Informers(_Client()) for name in ("own", *others)}
    unused: Any = None
    contexts = {
        name: ClusterContext(client=unused, recorder=unused, informers=made[name])
        for name in others
    }

    found = controllers._nodes(chosen(*words), made["own"], contexts)

    if wanted is None:
        assert found is None
        assert not made["own"].all
    else:
        assert found is made[wanted].of(NODES)
        assert [name for name, each in made.items() if each.all] == [wanted]


class _Client:
    """Calls that nobody makes."""

    def resource(self, _kind: object) -> Any:
        return SimpleNamespace()


async def test_events_of_all_clusters_are_abandoned_together() -> None:
    """After a lost Lease nothing of ours is written anywhere."""
    from ccm.app.clients import (
        Events,
    )

    client: Any = _Client()
    async with Events(client) as other, Events(client, [other]) as own:
        other.recorder("a")
        own.abandon()
        await asyncio.sleep(0)
        assert all(task.cancelled() or task.cancelling() for task in other._tasks)
