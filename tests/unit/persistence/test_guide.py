"""The persistence guide names every metric."""

from __future__ import annotations

from ccm.persistence import engine
from tests.generated.persistence import GUIDE


def test_persistence_guide_names_every_metric() -> None:
    text = GUIDE.read_text()
    named = [one for one in vars(engine).values() if hasattr(one, "describe")]

    assert len(named) == 5
    for metric in named:
        assert metric.describe()[0].name in text
