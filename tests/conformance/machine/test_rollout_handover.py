"""Objects of the Go machine-controller-manager in mid-roll, taken over and handed back."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.gardener import names
from ccm.testing.clock import advance
from tests.unit.controllers.machinedeployments import (
    MACHINES,
    REVISION,
    SETS,
    WEB,
    Rolling,
    all_run,
    owned_by_deployment,
    rolling,
    template,
)

pytestmark = pytest.mark.virtual_time

ONLY = ("machineset", "machinedeployment")
HASHES = {"small": "2894136487", "large": "743915321"}
"""As the reference writes them: over a dump of its own structs, which nobody else can make."""


def set_of_the_reference(world: Rolling, uid: str, kind: str, count: int, revision: str) -> None:
    """A set as the reference leaves it in a roll, with machines that run."""
    mark = {"machine-template-hash": HASHES[kind]}
    name = f"web-{kind[:5]}"
    notes = {
        REVISION: revision,
        "deployment.kubernetes.io/desired-replicas": "3",
        "deployment.kubernetes.io/max-replicas": "4",
    }
    if kind == "small":
        notes[names.TAINT_OLD_SET] = "True"
    made = template(kind)
    made["metadata"] = {"creationTimestamp": None, "labels": {"name": "web", **mark}}
    made["spec"] |= {"nodeTemplate": {"metadata": {"creationTimestamp": None}, "spec": {}}}
    world.set(
        name,
        replicas=count,
        metadata={
            **owned_by_deployment(uid),
            "labels": {"name": "web", **mark},
            "annotations": notes,
            "finalizers": [names.FINALIZER],
        },
        selector={"matchLabels": {"name": "web", **mark}},
        template=made,
    )
    owner = world.set_object(name)["metadata"]
    world.server.patch(f"{SETS}/{name}/status", {"status": {"observedGeneration": 1}})
    for number in range(count):
        machine = f"{name}-{number}"
        made_of: dict[str, Any] = {"class": {"kind": "MachineClass", "name": kind}}
        world.member(machine, owner=owner["uid"], labels=mark, **made_of)
        reference = [{**world.get(machine)["metadata"]["ownerReferences"][0], "name": name}]
        world.change(f"{MACHINES}/{machine}", metadata={"ownerReferences": reference})


def in_mid_roll() -> Rolling:
    """A deployment of 3 of which one machine is new."""
    world = Rolling()
    uid = world.deployment(
        replicas=3,
        strategy=rolling(1, 0),
        template=template("large"),
        metadata={"annotations": {REVISION: "2"}, "finalizers": [names.FINALIZER]},
    )
    set_of_the_reference(world, uid, "small", 3, "1")
    set_of_the_reference(world, uid, "large", 1, "2")
    return world


def essentials(world: Rolling) -> list[dict[str, Any]]:
    """What the reference reads of sets."""
    return [
        {
            "labels": one["metadata"]["labels"],
            "selector": one["spec"]["selector"],
            "template": one["spec"]["template"],
            "revision": one["metadata"]["annotations"][REVISION],
            "finalizers": one["metadata"]["finalizers"],
            "owner": one["metadata"]["ownerReferences"],
        }
        for one in sorted(world.sets(), key=lambda one: str(one["metadata"]["name"]))
    ]


@pytest.mark.row("rollout-handover-01", "rollout-handover-02", "rollout-pass-11")
async def test_a_roll_is_taken_over() -> None:
    world = in_mid_roll()
    before = essentials(world)
    async with world.running("machinedeployment"):
        await advance(0.5)
        assert world.said() == ("True", "FoundNewMachineSet")
    async with world.running(*ONLY):
        for _ in range(6):
            await all_run(world)

    assert (world.kinds(), world.said()) == ({"large": 3}, ("True", "NewMachineSetAvailable"))
    assert essentials(world) == before
    assert world.web()["metadata"]["annotations"][REVISION] == "2"


@pytest.mark.row("rollout-handover-02")
async def test_a_roll_is_handed_back(world: Rolling) -> None:
    world.deployment(replicas=3, strategy=rolling(1, 0))
    async with world.running(*ONLY):
        await all_run(world)
        world.edit(template=template("large"))
        await advance(2)

    assert world.sizes() == {"small": 3, "large": 1}
    for one in world.sets():
        notes = one["metadata"]["annotations"]
        assert notes["deployment.kubernetes.io/desired-replicas"] == "3"
        assert notes["deployment.kubernetes.io/max-replicas"] == "4"
        digest = one["metadata"]["labels"]["machine-template-hash"]
        made = one["spec"]["template"]["metadata"]["labels"]
        assert made == one["spec"]["selector"]["matchLabels"] == {
            "name": "web", "machine-template-hash": digest,
        }  # fmt: skip
    revisions = {one["metadata"]["annotations"][REVISION] for one in world.sets()}
    assert revisions == {"1", "2"}
    (old,) = [one for one in world.sets() if one["spec"]["replicas"] == 3]
    assert old["metadata"]["annotations"][names.TAINT_OLD_SET] == "True"
    assert world.server.get(WEB)["status"]["observedGeneration"] == 2  # type: ignore[index]
