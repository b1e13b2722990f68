"""Ownership labels and the provider's name. Existing resources have them: never change them.

Names in CamelCase are those of STACKIT's own controllers.
"""

from __future__ import annotations

from ccm.model import names

StackitProviderName = "stackit"
"""Value of `MachineClass.provider`, and scheme of provider IDs."""

StackitMachineLabel = names.LABEL_STACKIT_MACHINE
"""Server label: name of the machine."""

StackitMachineClassLabel = names.LABEL_STACKIT_MACHINE_CLASS
"""Server label: name of the machine's class."""

CLUSTER = "kube-ccm/cluster"
"""Server label: cluster in the machine's identity. The vendor's driver does not set it."""

NAMESPACE = "kube-ccm/namespace"
"""Server label: namespace of the machine."""

UID = "kube-ccm/uid"
"""Server label: UID of the machine."""

BALANCER_CLUSTER = "kube-ccm.cluster"
"""Load balancer label: name of the cluster. Keys of these labels must not contain a slash."""

BALANCER_CREDENTIALS = "kube-ccm.credentials"
"""Load balancer label: hash of the credentials last sent for its metrics."""
