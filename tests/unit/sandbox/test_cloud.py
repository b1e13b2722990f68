"""Discovery of a running sandbox, and actions on the machines of its cloud."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from ccm.sandbox import cloud
from ccm.sandbox.cloud import ActionError, CloudEndpoint
from providers.sim import server

OURS = CloudEndpoint(url="http://127.0.0.1:1", token="t")


def folder(home: Path, name: str) -> Path:
    made = home / f"{cloud.PREFIX}{name}"
    made.mkdir()
    return made


def test_single_running_sandbox_is_found_without_a_folder(tmp_path: Path) -> None:
    """The folder may outlive the sandbox; its file is then ignored."""
    kept = folder(tmp_path, "a")
    with cloud.announce(kept, OURS):
        assert cloud.find_sandbox(None, "", home=tmp_path) == OURS
        assert cloud.find_sandbox(kept, "", home=tmp_path / "elsewhere") == OURS

    with pytest.raises(ActionError, match=f"runs in {tmp_path}; start one with kube-ccm sandbox$"):
        cloud.find_sandbox(None, "", home=tmp_path)
    with pytest.raises(ActionError, match=f"no sandbox runs in {kept}"):
        cloud.find_sandbox(kept, "", home=tmp_path)


def test_several_sandboxes_require_a_choice(tmp_path: Path) -> None:
    both = [folder(tmp_path, name) for name in "ab"]
    with contextlib.ExitStack() as stack:
        for number, each in enumerate(both):
            stack.enter_context(cloud.announce(each, CloudEndpoint(url=str(number))))

        with pytest.raises(ActionError) as refused:
            cloud.find_sandbox(None, "/etc/kubeconfig", home=tmp_path)
        kubeconfig = str(both[1] / "apiserver" / "kubeconfig")
        assert cloud.find_sandbox(None, kubeconfig, home=tmp_path).url == "1"
        assert cloud.find_sandbox(both[0], kubeconfig, home=tmp_path).url == "0"

    said = str(refused.value)
    assert said.startswith(f"2 sandboxes run: {both[0]}, {both[1]}; ")
    assert "--folder=" in said


def test_malformed_sandbox_file_is_ignored(tmp_path: Path) -> None:
    made = folder(tmp_path, "a")
    with cloud.announce(made, OURS):
        (made / "sandbox.json").write_text("{")

        with pytest.raises(ActionError):
            cloud.find_sandbox(None, "", home=tmp_path)


@pytest_asyncio.fixture
async def told() -> AsyncIterator[CloudEndpoint]:
    service = server.Service(token="t")
    service.world.transition_s = 0.0
    async with server.serve(service) as url:
        async with cloud.open_admin(url, "t") as admin:
            await admin.place(["n1", "n2"])
        yield CloudEndpoint(url=url, token="t")


async def states(told: CloudEndpoint) -> dict[str, str]:
    async with cloud.open_admin(told.url, told.token) as admin:
        return {one.name: one.state for one in await admin.instances()}


async def test_action_changes_only_the_machine_of_its_node(told: CloudEndpoint) -> None:
    assert "n1: i-0001 is powered off" in await cloud.run_action("poweroff", "n1", told)
    assert await states(told) == {"n1": "stopped", "n2": "running"}

    assert "n1: i-0001 is powered on" in await cloud.run_action("poweron", "n1", told)
    assert await states(told) == {"n1": "running", "n2": "running"}

    assert "n2: i-0002 is deleted" in await cloud.run_action("delete", "n2", told)
    assert await states(told) == {"n1": "running"}

    assert "n3: " in await cloud.run_action("add", "n3", told)
    assert await states(told) == {"n1": "running", "n3": "running"}


async def test_impossible_action_error_lists_the_machines(told: CloudEndpoint) -> None:
    with pytest.raises(ActionError, match=r"'x': no machine of this name; machines: n1, n2$"):
        await cloud.run_action("delete", "x", told)
    with pytest.raises(ActionError, match="n1: a machine of this name already exists"):
        await cloud.run_action("add", "n1", told)
    with pytest.raises(ActionError, match="uses your own cloud; run the action there"):
        await cloud.run_action("delete", "n1", CloudEndpoint())


# --- The administrator's calls, against the simulated cloud itself -----------------------------


@pytest_asyncio.fixture
async def admin() -> AsyncIterator[cloud.Admin]:
    service = server.Service(token="t")
    async with server.serve(service) as url, cloud.open_admin(url, "t") as calls:
        yield calls


async def test_placed_instances_run_and_admin_calls_are_not_counted(
    admin: cloud.Admin,
) -> None:
    names = [f"n{number}" for number in range(2001)]  # more than one request carries

    await admin.place(names)

    running = await admin.running()
    assert list(running) == names
    assert running["n1"] == "i-0002"
    assert await admin.call_count() == 0


async def test_refused_admin_call_raises_an_error(admin: cloud.Admin) -> None:
    await admin.place(["a"])

    with pytest.raises(cloud.AdminError, match="HTTP 409"):
        await admin.place(["a"])


async def test_members_of_every_load_balancer_are_counted(admin: cloud.Admin) -> None:
    assert await admin.members() == {}
    listeners = [{"protocol": "TCP", "port": 80, "target_port": 30080}]
    headers = {"Authorization": "Bearer t"}
    async with aiohttp.ClientSession(admin.url, headers=headers) as session:
        for number in range(501):  # more than one page
            order = {"name": f"b{number}", "listeners": listeners}
            async with session.post("/admin/balancers", json=order) as response:
                assert response.status == 201, await response.text()

    members = await admin.members()

    assert len(members) == 501
    assert set(members.values()) == {0}
