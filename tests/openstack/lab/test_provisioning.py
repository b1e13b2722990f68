"""MachineDeployments of Kubermatic's API are provisioned before real services."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import servers
from tests.e2e.provisioning import test_all_e2e
from tests.e2e.provisioning.targets import targets
from tests.openstack.lab.harness import LabHarness


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("openstack-lab")
@servers.only_real
async def test_machine_deployments_come_and_go(
    api_server: servers.ApiServer,
    tmp_path: Path,
    harness: LabHarness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The scenarios of real clouds, with one version of the kubelet, which is simulated."""
    state = harness.state
    values = {
        "AUTH_URL": state.settings.auth_url,
        "APPLICATION_CREDENTIAL_ID": state.credential["id"],
        "APPLICATION_CREDENTIAL_SECRET": state.credential["secret"],
        "REGION": state.settings.region,
        "FLAVOR": state.flavor["name"],
        "IMAGE": state.image["id"],
        "NETWORK": state.network["id"],
    }
    found = targets({f"OPENSTACK_E2E_{name}": text for name, text in values.items()})
    (target,) = (target for target in found if target.is_real)
    # Names end with the patch of the kubelet, or are unknown-os, unsupported-os and migrateUID.
    monkeypatch.setenv("E2E_SCENARIOS", "*[2sD]")

    await test_all_e2e.test_provisioning_e2e(target, api_server, tmp_path)

    assert (await harness.vms(), await harness.beside_vms()) == ([], [])
