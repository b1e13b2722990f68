"""The names that others read stay as they are."""

from __future__ import annotations

from ccm.gardener import names
from ccm.model import names as kubernetes

PROMISED = """
machine.sapcloud.io/machine-controller-manager
machine.sapcloud.io/machine-controller
node.machine.sapcloud.io/machine-controller
node
name
force-deletion
force-drain
freeze
machine-template-hash
node.machine.sapcloud.io/scale-up-disabled
node.gardener.cloud/machine-name
node.machine.sapcloud.io/candidate-for-update
node.machine.sapcloud.io/selected-for-update
node.machine.sapcloud.io/update-result
machinepriority.machine.sapcloud.io
machine.sapcloud.io/marked-for-deletion-time
node.machine.sapcloud.io/trigger-deletion-by-mcm
machine.sapcloud.io/last-deployment-replica-change-by-scaler-time
node.machine.sapcloud.io/effective-creation-timeout
node.machine.sapcloud.io/machine-join-duration
node.machine.sapcloud.io/last-applied-anno-labels-taints
node.machine.sapcloud.io/last-applied-virtual-capacity
node.machine.sapcloud.io/not-managed-by-mcm
node.machine.sapcloud.io/update-failed-reason
node.machine.sapcloud.io/preserve
node.machine.sapcloud.io/last-applied-node-preserve-value
safety.machine.sapcloud.io/unfreeze
deployment.kubernetes.io/revision
deployment.kubernetes.io/revision-history
deployment.kubernetes.io/desired-replicas
deployment.kubernetes.io/max-replicas
cluster-autoscaler.kubernetes.io/scale-down-disabled
cluster-autoscaler.kubernetes.io/scale-down-disabled-by-mcm
node.gardener.cloud/critical-components-not-ready
deployment.machine.sapcloud.io/prefer-no-schedule
node.machine.sapcloud.io/preserved
Terminating
InPlaceUpdate
Preserved
"""


def test_every_name_is_there_byte_by_byte() -> None:
    ours = {
        text
        for module in (names, kubernetes)
        for text in vars(module).values()
        if isinstance(text, str)
    }

    assert [name for name in PROMISED.split() if name not in ours] == []
