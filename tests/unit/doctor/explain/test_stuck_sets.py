"""What `kube-ccm explain` says first of a MachineSet and of a MachineDeployment."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ccm.app.serving import explain
from ccm.doctor.explain import subject
from ccm.gardener import names
from ccm.gardener.explaining import DEPLOYMENT, SET
from ccm.gardener.kinds import MACHINE_DEPLOYMENTS, MACHINE_SETS
from ccm.runtime.account import Answer
from ccm.testing.clock import advance
from tests.unit.controllers.machines import BASE, DEFINITIONS
from tests.unit.controllers.machinesets import SETS, Sets, moment
from tests.unit.doctor.explain.stuck_machines import StuckMachines

pytestmark = pytest.mark.virtual_time

WEB = "default/web"
BOTH = "machineset,machinedeployment"


class StuckSets(StuckMachines, Sets):
    """Asked about one kind of object."""

    kind = DEPLOYMENT

    def case(self, name: str = WEB, **facts: Any) -> subject.Case:
        told = explain.about(self.kind, name, self.chosen, self.vitals)
        answer = msgspec.json.decode(msgspec.json.encode(told), type=Answer)
        body = self.server.get(f"{BASE}/{self.kind}s/{name.partition('/')[2]}")
        of: Any = (MACHINE_SETS if self.kind == SET else MACHINE_DEPLOYMENTS).type
        found = msgspec.convert(body, of) if body else None
        return subject.Case(kind=self.kind, name=name, found=found, answer=answer, **facts)

    def state(self, name: str = WEB) -> str:
        """What the controller of that kind says."""
        answer = self.case(name).answer
        assert answer is not None
        (account,) = answer.accounts
        return account.state

    def set_name(self) -> str:
        """The only set's."""
        (found,) = self.server.list(SETS)
        return str(found["metadata"]["name"])


@pytest.fixture
def stuck() -> StuckSets:
    found = StuckSets()
    found.ready_class()
    return found


async def test_a_deployment_and_its_set_tell_how_far_they_are(stuck: StuckSets) -> None:
    stuck.deployment(replicas=2)
    async with stuck.leading(controllers=BOTH):
        await advance(5)

        said = "default/web is not rolled out: 0 of 2 machines are available"
        assert stuck.says(WEB) == said
        assert "explain machine" in stuck.advice(WEB)
        assert stuck.state() == "2 of 2 machines new, 0 available, 2 there"

        stuck.all_become("Running")
        await advance(5)
        assert stuck.says(WEB).startswith("default/web is rolled out, and nothing is to be done")
        stuck.kind = SET
        name = f"default/{stuck.set_name()}"
        assert stuck.says(name) == (
            f"{name} has 2 of 2 machines, and nothing is to be done "
            "(2 of 2 machines of MachineDeployment web, 2 run)"
        )


async def test_one_that_is_paused_says_how_it_goes_on(stuck: StuckSets) -> None:
    stuck.deployment(replicas=1, paused=True)
    async with stuck.leading(controllers=BOTH):
        await advance(5)

        assert stuck.says(WEB) == "default/web is not rolled out: it is paused"
        assert stuck.advice(WEB) == "kube-ccm rollout resume machinedeployment/web"


@pytest.mark.parametrize(
    ("kind", "said", "advice"),
    [
        (names.CONDITION_FROZEN, "it is frozen: 9 are there", names.ANNOTATION_UNFREEZE),
        (names.CONDITION_SLOWED, "3 machines in a row failed", "kube-ccm explain machine"),
    ],
    ids=["frozen", "slow"],
)
async def test_what_keeps_a_set_keeps_its_deployment(
    stuck: StuckSets, kind: str, said: str, advice: str
) -> None:
    stuck.deployment(replicas=1)
    async with stuck.leading(controllers="machinedeployment"):
        await advance(5)
    name = stuck.set_name()
    told = {"type": kind, "status": "True", "message": "9 are there"}
    told["lastTransitionTime"] = moment(0)
    path = f"{SETS}/{name}/status"
    stuck.server.patch(path, {"status": {"machineSetCondition": [told]}})
    if kind == names.CONDITION_FROZEN:
        stuck.freeze(name)

    async with stuck.leading(controllers=BOTH):
        await advance(5)

        of_deployment = stuck.says(WEB)
        stuck.kind = SET
        assert stuck.says(f"default/{name}").startswith(f"default/{name} has 0 of 1 machines: ")
        assert said in stuck.says(f"default/{name}")
        assert advice in stuck.advice(f"default/{name}")
        assert f"default/web is not rolled out: MachineSet {name}: {said}" in of_deployment


async def test_a_class_that_cannot_be_used_keeps_both(stuck: StuckSets) -> None:
    stuck.server.patch(f"{BASE}/machineclasses/small", {"provider": "other"})
    stuck.deployment(replicas=1)
    async with stuck.leading(controllers=BOTH):
        await advance(5)
        name = f"default/{stuck.set_name()}"

        said = "no VM can be created of MachineClass small: MachineClass small: provider is 'other'"
        assert f"default/web is not rolled out: {said}" in stuck.says(WEB)
        assert "correct the class" in stuck.advice(WEB)
        stuck.kind = SET
        assert said in stuck.says(name)


@pytest.mark.parametrize(
    ("kind", "needed"),
    [(SET, "machine-set-controller"), (DEPLOYMENT, "machine-deployment-controller")],
)
async def test_who_would_have_to_look_after_it(stuck: StuckSets, kind: str, needed: str) -> None:
    stuck.kind = kind
    stuck.set(replicas=3)
    stuck.deployment(replicas=3)
    async with stuck.leading():
        await advance(5)

        assert f"controller {needed} is not running" in stuck.says(WEB)
        assert f",{kind}" in stuck.advice(WEB)


async def test_another_namespace_is_another_daemons(stuck: StuckSets) -> None:
    stuck.deployment()
    async with stuck.leading("--namespace=shoot", controllers=BOTH):
        assert "this daemon looks after those in shoot" in stuck.says(WEB)
        assert "--namespace" in stuck.advice(WEB)


@pytest.mark.parametrize("kind", [SET, DEPLOYMENT])
async def test_missing_definitions_are_said(stuck: StuckSets, kind: str) -> None:
    for plural in ("machines", "machinesets", "machinedeployments", "machineclasses"):
        stuck.server.drop(f"{DEFINITIONS}/{plural}.{names.GROUP}")
    stuck.kind = kind
    async with stuck.leading(controllers=BOTH):
        await advance(5)

        assert stuck.state() == "not looked at"
