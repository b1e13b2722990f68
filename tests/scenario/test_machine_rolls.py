"""A MachineDeployment rolls, shrinks and goes, its bounds seen from a watch: the whole daemon with
the rights that are shipped for it; steered by `kube-ccm rollout`."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from ccm.cli import rollout
from ccm.sandbox import realserver
from tests import servers
from tests.manifests import account, shipped
from tests.scenario.fleet import CONTROLLERS, Fleet
from tests.scenario.harness import Environment, wait_for

RIGHTS = shipped.MACHINE_RIGHTS
FLAGS = {"controllers": CONTROLLERS, "kube-api-qps": "-1"}


@pytest_asyncio.fixture
async def fleet(env: Environment, boot_s: float) -> AsyncIterator[Fleet]:
    """Classes of machines `one` and `two`, and kubelets; the daemon leads."""
    async with servers.connect(env.server) as session:
        made = Fleet(session, boot_s=boot_s)
        if isinstance(env.server, realserver.RealServer):
            await account.install(session, shipped.objects(*RIGHTS))
        await made.define()
        for kind in ("one", "two"):
            await made.make_class(kind, token=env.cloud.token)
        await env.start_leading(flags=FLAGS)
        async with made.at_work():
            yield made
            daemon = env.daemons[-1]
            assert await daemon.stop() == 0


async def asked(env: Environment, *words: str) -> tuple[int, str]:
    """Status and output of `kube-ccm rollout`."""
    kubeconfig = next(iter(env.folder.glob("*.kubeconfig")))
    out = io.StringIO()
    wanted = rollout.read([*words, f"--kubeconfig={kubeconfig}"])
    return await rollout.answer(wanted, out, environ={}), out.getvalue()


async def until_complete(fleet: Fleet) -> None:
    """The deployment says that it is rolled out."""

    async def complete() -> bool:
        conditions = (await fleet.said()).get("conditions") or ()
        return "NewMachineSetAvailable" in {one["reason"] for one in conditions}

    await wait_for(complete, "the rollout is complete")


@pytest.mark.parametrize(
    ("count", "few", "surge", "unavailable", "boot_s", "roll_s"),
    [
        pytest.param(4, 2, 1, 1, 0.1, 60, id="smoke"),
        pytest.param(50, 10, 5, 2, 2.0, 120, id="fifty", marks=pytest.mark.soak),
        pytest.param(200, 10, 5, 2, 2.0, 400, id="two-hundred", marks=pytest.mark.soak),
    ],
)
async def test_a_life(
    env: Environment,
    fleet: Fleet,
    count: int,
    few: int,
    surge: int,
    unavailable: int,
    roll_s: float,
) -> None:
    await fleet.deploy(count, kind="one", surge=surge, unavailable=unavailable)
    create_s = await fleet.until(lambda one: one.all_run("one", count))
    await until_complete(fleet)
    fleet.watch_bounds()
    await fleet.roll("two")
    took_s = await fleet.until(lambda one: one.all_run("two", count), within_s=roll_s)
    most, least = fleet.most, fleet.least
    await fleet.scale(few)
    scale_s = await fleet.until(lambda one: one.all_run("two", few))
    await fleet.delete()
    delete_s = await fleet.until(lambda one: one.all_run("two", 0))

    print(f"create {create_s:.1f} s, roll {took_s:.1f} s, scale {scale_s:.1f}, {delete_s:.1f} s")
    assert most <= count + surge
    assert least >= count - unavailable
    assert env.cloud.world.snapshot() == ()
    assert env.forbidden() == []


@pytest.mark.parametrize("boot_s", [0.1])
async def test_steering(env: Environment, fleet: Fleet, capsys: pytest.CaptureFixture[Any]) -> None:
    name = "machinedeployment/workers"
    await fleet.deploy(2, kind="one", surge=1, unavailable=0)
    status, said = await asked(env, "status", name, "--timeout=1m")
    assert (status, said.splitlines()[-1]) == (0, '"workers" is rolled out')

    assert await asked(env, "undo", name) == (1, "")
    assert "There is no revision before this one. There are 1." in capsys.readouterr().err
    assert (await asked(env, "pause", name))[1].endswith("/workers paused\n")
    assert await asked(env, "pause", name) == (1, "")
    assert '"workers" is already paused' in capsys.readouterr().err
    await fleet.roll("two")
    assert await asked(env, "undo", name) == (1, "")
    assert "resume it first" in capsys.readouterr().err
    assert (await asked(env, "status", name, "--timeout=500ms"))[0] == 1
    assert "not done within 0.5s" in capsys.readouterr().err
    assert (await asked(env, "resume", name))[1].endswith("/workers resumed\n")
    assert (await asked(env, "status", "mcd", "workers", "--timeout=1m"))[0] == 0
    assert fleet.all_run("two", 2)

    status, said = await asked(env, "undo", name, "--to-revision=1")
    assert (status, said.strip()) == (
        0,
        "machinedeployment.machine.sapcloud.io/workers goes back to revision 1",
    )
    await fleet.until(lambda one: one.all_run("one", 2))
    await fleet.delete()
    await fleet.until(lambda one: one.all_run("one", 0))
    await wait_for(lambda: gone(fleet), "the deployment is gone")
    assert await asked(env, "status", name) == (1, "")
    assert "not found" in capsys.readouterr().err


async def gone(fleet: Fleet) -> bool:
    return not await fleet.said()
