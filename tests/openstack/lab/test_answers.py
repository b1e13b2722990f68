"""The fake answers as real services do: `answers.json` has the shapes of the lab's responses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ccm.testing.fake_api import Exchange
from providers.openstack.testing import server
from tests.openstack.harness import OpenStackHarness
from tests.openstack.lab.harness import LabHarness
from tests.openstack.lab.shapes import misfits, shapes_of
from tests.openstack.lab.story import play

ANSWERS = Path(__file__).with_name("answers.json")
RECORD = "OPENSTACK_LAB_RECORD"
"""Set: the file is written anew."""


async def test_the_fake_answers_as_the_lab_did() -> None:
    recorded = json.loads(ANSWERS.read_text())
    seen: list[Exchange] = []
    fake = server.Service(witness=seen.append)
    async with server.serve(fake) as url:
        await play(OpenStackHarness(fake, url))

    shapes = shapes_of(seen)
    unknown = [name for name in shapes if name not in recorded]
    faults = [
        f"{name} {fault}"
        for name, shape in shapes.items()
        if name in recorded
        for fault in misfits(shape, recorded[name])
    ]
    assert (unknown, faults) == ([], [])


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("openstack-lab")
async def test_the_lab_answers_as_recorded(harness: LabHarness, seen: list[Exchange]) -> None:
    await play(harness)

    shapes = shapes_of(seen)
    if os.environ.get(RECORD):
        ANSWERS.write_text(json.dumps(shapes, indent=1) + "\n")
    recorded = json.loads(ANSWERS.read_text())
    faults = [
        f"{name} {fault}"
        for name, shape in shapes.items()
        if name in recorded
        for fault in misfits(shape, recorded[name])
    ]
    assert (sorted(shapes.keys() ^ recorded.keys()), faults) == ([], [])
