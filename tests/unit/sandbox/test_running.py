"""How a running sandbox is found, and what `kube-ccm sandbox poweroff` and the like do to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from ccm.sandbox import cloud, running
from ccm.sandbox.running import NoSandbox, Running
from providers.sim import server

OURS = Running(url="http://127.0.0.1:1", token="t")


def folder(home: Path, name: str) -> Path:
    made = home / f"{running.PREFIX}{name}"
    made.mkdir()
    return made


def test_the_only_one_is_meant_while_it_runs(tmp_path: Path) -> None:
    """The folder may outlive it, and its file says nothing then."""
    kept = folder(tmp_path, "a")
    with running.announced(kept, OURS):
        assert running.find(None, "", home=tmp_path) == OURS
        assert running.find(kept, "", home=tmp_path / "elsewhere") == OURS

    with pytest.raises(NoSandbox, match=rf"none in {tmp_path}\); start one: kube-ccm sandbox$"):
        running.find(None, "", home=tmp_path)
    with pytest.raises(NoSandbox, match=f"no sandbox runs in {kept}"):
        running.find(kept, "", home=tmp_path)


def test_only_its_owner_may_read_how_to_reach_the_cloud(tmp_path: Path) -> None:
    with running.announced(folder(tmp_path, "a"), OURS):
        (file,) = tmp_path.rglob("*.json")

        assert file.stat().st_mode & 0o077 == 0


def test_of_several_somebody_has_to_choose(tmp_path: Path) -> None:
    both = [folder(tmp_path, name) for name in "ab"]
    with contextlib.ExitStack() as stack:
        for number, each in enumerate(both):
            stack.enter_context(running.announced(each, Running(url=str(number))))

        with pytest.raises(NoSandbox) as refused:
            running.find(None, "/etc/kubeconfig", home=tmp_path)
        kubeconfig = str(both[1] / "apiserver" / "kubeconfig")
        assert running.find(None, kubeconfig, home=tmp_path).url == "1"
        assert running.find(both[0], kubeconfig, home=tmp_path).url == "0"

    said = str(refused.value)
    assert said.startswith(f"2 sandboxes run: {both[0]}, {both[1]}; ")
    assert "--folder=" in said


def test_a_garbled_file_is_nobodys(tmp_path: Path) -> None:
    made = folder(tmp_path, "a")
    with running.announced(made, OURS):
        (made / "sandbox.json").write_text("{")

        with pytest.raises(NoSandbox):
            running.find(None, "", home=tmp_path)


@pytest_asyncio.fixture
async def told() -> AsyncIterator[Running]:
    service = server.Service(token="t")
    service.world.transition_s = 0.0
    async with server.serve(service) as url:
        async with cloud.open_admin(url, "t") as admin:
            await admin.place(["n1", "n2"])
        yield Running(url=url, token="t")


async def states(told: Running) -> dict[str, str]:
    async with cloud.open_admin(told.url, told.token) as admin:
        return {one.name: one.state for one in await admin.instances()}


async def test_each_act_changes_the_machine_of_that_node_alone(told: Running) -> None:
    assert "n1: i-0001 is powered off" in await running.carry_out("poweroff", "n1", told)
    assert await states(told) == {"n1": "stopped", "n2": "running"}

    assert "n1: i-0001 is powered on" in await running.carry_out("poweron", "n1", told)
    assert await states(told) == {"n1": "running", "n2": "running"}

    assert "n2: i-0002 is deleted" in await running.carry_out("delete", "n2", told)
    assert await states(told) == {"n1": "running"}

    assert "n3: " in await running.carry_out("add", "n3", told)
    assert await states(told) == {"n1": "running", "n3": "running"}


async def test_what_cannot_be_done_is_told_with_what_there_is(told: Running) -> None:
    with pytest.raises(running.Refused, match=r"no machine for 'x'; it has n1, n2$"):
        await running.carry_out("delete", "x", told)
    with pytest.raises(running.Refused, match="n1 has a machine already"):
        await running.carry_out("add", "n1", told)
    with pytest.raises(running.Refused, match="a cloud of your own: do it there"):
        await running.carry_out("delete", "n1", Running())
