"""The worlds of disasters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.disasters.nodes_world import World


@pytest.fixture(params=[False, True], ids=["guarded", "reference"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Around daemons of either policy; nothing is harmed but by the reference's."""
    made = World(reference=request.param)
    yield made
    assert bool(made.harmed) is made.reference


@pytest.fixture
def guarded() -> Iterator[World]:
    """Around daemons of our policy, in stories where the other one does no harm."""
    made = World()
    yield made
    assert made.harmed == []
