"""What the doctor says about deletions that are held back."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ccm.app import options
from ccm.doctor.case import Case
from ccm.doctor.cluster import deletions_held
from ccm.doctor.finding import Finding
from ccm.kube.errors import NotFound
from ccm.model import ConfigMap

HELD = {
    "count": 7,
    "objects": [
        {"name": "n1", "reason": "mass_denial", "since": "2026-01-01T00:00:00Z"},
        {"name": "web", "namespace": "shop", "reason": "limit", "since": "2026-01-01T00:00:00Z"},
    ],
}
KEY = "cloud-controller-manager.Node.held"


async def told(
    data: Mapping[str, Any] | None, annotations: Mapping[str, str] | None = None
) -> Finding:
    async def get(name: str, *, namespace: str) -> ConfigMap:
        assert (namespace, name) == ("kube-system", "kube-ccm-deletions")
        if data is None:
            raise NotFound(status=404, reason="NotFound", message="no")
        metadata = {"name": name, "annotations": annotations}
        return msgspec.convert({"metadata": metadata, "data": data}, ConfigMap)

    case = Case(options=options.parse(["--cloud-provider=sim"]), environ={})
    client: Any = SimpleNamespace(resource=lambda _kind: SimpleNamespace(get=get))
    case.client = client
    return await deletions_held(case)


@pytest.mark.parametrize(
    "data", [None, {}, {"other.Node.held": "{", "cloud-controller-manager.too.Node.held": "{"}]
)
async def test_nothing_is_held(data: Mapping[str, str] | None) -> None:
    found = await told(data)

    assert (found.verdict.value, found.found) == ("ok", "none is held back")


async def test_each_is_named_with_its_reason_and_since_when() -> None:
    found = await told({KEY: msgspec.json.encode(HELD).decode()})

    assert (found.verdict.value, found.found) == ("warn", "held back: 7 Nodes")
    assert found.details == (
        "Node n1: mass_denial, since 2026-01-01T00:00:00Z",
        "Node shop/web: limit, since 2026-01-01T00:00:00Z",
        "Node: and 5 more",
    )


async def test_a_garbled_record_fails_and_is_named() -> None:
    found = await told({KEY: "{"})

    assert found.verdict.value == "fail"
    assert "ConfigMap kube-system/kube-ccm-deletions" in found.found
    assert KEY in found.found


async def test_an_open_brake_is_told() -> None:
    found = await told({}, {"kube-ccm/allow-deletion": "true"})

    assert found.verdict.value == "warn"
    assert "kube-ccm/allow-deletion" in found.found
