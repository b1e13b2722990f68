"""Provider specs of Kubermatic's machines in the simulated cloud."""

from __future__ import annotations

from ccm.cloud.configvar import Resolver
from ccm.cloud.kubermatic import ProviderConfig
from providers.sim import machines
from providers.sim.kubermatic import KubermaticMachines


def test_each_field_reaches_the_driver() -> None:
    """From text, number or Secret, as the field has it."""
    size = {"secretKeyRef": {"namespace": "default", "name": "sizes", "key": "volume"}}
    given = {
        "machineType": "big",
        "zone": {"value": "sim-1b"},
        "labels": {"team": "a"},
        "allowedAddresses": ["10.244.0.0/16"],
        "dataVolumes": [1, size],
    }
    resolver = Resolver(lambda _: {"volume": b"2"}, {})
    driver = KubermaticMachines(None)  # type: ignore[arg-type]

    spec = driver.kubermatic_spec(ProviderConfig(cloud_provider_spec=given), resolver, strict=True)

    assert machines.parse_spec(spec) == machines.Spec(
        machine_type="big",
        zone="sim-1b",
        labels={"team": "a"},
        allowed_addresses=("10.244.0.0/16",),
        data_volumes=(1, 2),
    )
