"""Start of the controllers of Kubermatic's machine objects, and their flags."""

from __future__ import annotations

from copy import deepcopy
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from ccm.app import kubermaticcontrollers, options
from ccm.app.kubermaticcontrollers import MANIFESTS, warn_of_older_crd
from ccm.app.machinecontrollers import Inputs
from ccm.base.metrics import REGISTRY
from ccm.cloud import Cloud
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.kubermatic import KubermaticDriver
from ccm.kube.resources import CRDS
from ccm.kubermatic import crds, flags, names, observer
from ccm.machines import metrics as machine_metrics
from ccm.model import ObjectMeta
from ccm.model.machines import MachineClass
from ccm.runtime.manifest import ControllerContext
from tests.unit.cloud.test_kubermatic import AcmeCloud, Native
from tests.unit.controllers.machines import DEFINITIONS
from tests.unit.controllers.memory_server import MemoryServer

pytestmark = pytest.mark.virtual_time


async def started(server: MemoryServer) -> list[Any]:
    """Log lines of a start."""
    with capture_logs() as lines:
        await warn_of_older_crd(server.client().resource(CRDS))
    return lines


@pytest.mark.row("kubermatic-older-01")
async def test_machines_of_an_older_group_are_named_with_what_to_do() -> None:
    server = MemoryServer()
    assert await started(server) == []
    older: dict[str, Any] = deepcopy(dict(crds.DEFINITIONS[0].to_manifest()))
    older["metadata"]["name"], older["spec"]["group"] = names.OLDER_CRD, "machine.k8s.io"
    server.put(DEFINITIONS, older)

    (line,) = await started(server)

    assert line["crd"] == "machines.machine.k8s.io"
    assert "convert them with Kubermatic's machine-controller" in line["advice"]


def test_only_the_controller_of_machines_reads_the_older_crd() -> None:
    readers = [
        kind
        for kind, manifest in MANIFESTS.items()
        if names.OLDER_CRD in [name for _, _, name in manifest.named_permissions]
    ]

    assert readers == [flags.KubermaticMachineFlags]


def inputs(given: options.Options, **fields: Any) -> Inputs:
    """What the controllers are built from, without an API server."""
    context = ControllerContext(
        client=Mock(),
        recorder=Mock(),
        informers=Mock(),
        cloud_client=CloudClient(Cloud(name="fake", **fields)),
        inventory=None,
        gates={},
        deletions=Mock(),
    )
    shared = kubermaticcontrollers._shared(context, given)
    shared.caches._is_ready = True
    return Inputs(context, shared, "")


@pytest.mark.row("kubermatic-flags-01")
@pytest.mark.parametrize(
    ("argv", "creation_s", "drain_s"),
    [
        ([], None, 7200.0),
        (["--join-cluster-timeout=25m", "--skip-eviction-after=1h"], 1500.0, 3600.0),
    ],
)
def test_timeouts_of_the_reference_reach_the_controllers(
    argv: list[str], creation_s: float | None, drain_s: float
) -> None:
    settings = inputs(options.parse(argv)).caches.settings

    assert (settings.creation_timeout_s, settings.drain_timeout_s) == (creation_s, drain_s)
    assert settings.health_timeout_s is None, "only a machine whose instance is gone is replaced"


@pytest.mark.row("kubermatic-flags-01")
def test_name_and_namespace_select_the_machines() -> None:
    caches = inputs(
        options.parse(["--kubermatic-name=blue", "--kubermatic-namespace=machines"])
    ).caches

    assert caches.namespace == "machines"
    assert caches.codec.foreign_reason(Mock(labels={}, annotation=lambda _: ""))
    own = Mock(labels={names.LABEL_CONTROLLER: "blue"}, annotation=lambda _: "")
    assert not caches.codec.foreign_reason(own)


@pytest.mark.row("kubermatic-machine-24")
def test_origin_of_a_machine_contains_the_variables_of_the_daemon() -> None:
    obj = MachineClass(metadata=ObjectMeta(name="web", namespace="default"), provider_spec={})

    def origin(environ: dict[str, str]) -> str:
        driver = KubermaticDriver(Native(AcmeCloud()), environ)
        return inputs(options.parse([]), kubermatic=driver).caches.resolve(obj).origin

    assert origin({"ACME_TOKEN": "a"}) == origin({"ACME_TOKEN": "a", "OTHER": "x"})
    assert len({origin({}), origin({"ACME_TOKEN": "a"}), origin({"ACME_TOKEN": "b"})}) == 3


@pytest.mark.row("kubermatic-flags-01", "kubermatic-metrics-04")
@pytest.mark.parametrize(
    ("argv", "workers"),
    [
        ([], 50),
        (["--machine-concurrent-syncs=9"], 9),
        (["--machine-concurrent-syncs=9", "--worker-count=7"], 7),
    ],
)
async def test_worker_count_is_a_metric(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], workers: int
) -> None:
    # Both read the caches at each scrape.
    monkeypatch.setattr(observer, "MachineObserver", Mock())
    monkeypatch.setattr(machine_metrics, "SOURCES", {})
    given = options.parse(argv)
    controller: Any = kubermaticcontrollers._make_machine(inputs(given), given)

    controller._make()
    machine_metrics.SOURCES.clear()

    assert REGISTRY.get_sample_value("machine_controller_workers") == workers
