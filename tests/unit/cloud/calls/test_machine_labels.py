"""Labels of metrics about machines, whatever a driver says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ccm.cloud import Cloud, Driver
from ccm.cloud.calls.handle import Handle
from ccm.cloud.calls.machine_labels import machine_labels


class Labelled(Driver[Any]):
    def machine_metrics_labels(self, spec: Mapping[str, Any]) -> Any:
        if isinstance(self.spi, Exception):
            raise self.spi
        return {"size": spec["size"]} if self.spi == "spec" else self.spi


@pytest.mark.parametrize(
    ("driver", "labels"),
    [
        (Labelled("spec"), {"size": "big"}),
        (Labelled({"zone": "z", "cores": 4}), {"size": "", "zone": "z", "cores": "4"}),
        (Labelled(None), {"size": ""}),
        (Labelled(["size"]), {"size": ""}),
        (Labelled(KeyError("x")), {"size": ""}),
        (Driver(None), {"size": ""}),
        (None, {"size": ""}),
    ],
    ids=["the driver's", "no size", "None", "a list", "an error", "not offered", "no machines"],
)
def test_there_is_always_a_size(driver: Any, labels: Mapping[str, str]) -> None:
    handle = Handle(Cloud(name="acme", machines=driver))

    assert machine_labels(handle, {"size": "big"}) == labels
