"""Names that say what something is, and whose. Those of STACKIT's own managers are promises."""

from __future__ import annotations

from ccm.model import names

StackitProviderName = "stackit"
"""Of `MachineClass.provider`, and the scheme of provider IDs."""

StackitMachineLabel = names.LABEL_STACKIT_MACHINE
"""Label of a server: the name of its machine."""

StackitMachineClassLabel = names.LABEL_STACKIT_MACHINE_CLASS
"""Label of a server: the name of its machine's class."""

CLUSTER = "kube-ccm/cluster"
"""Label of a server: the marker of its machine's cluster, which the vendor's driver lacks."""

NAMESPACE = "kube-ccm/namespace"
"""Label of a server: the namespace of its machine."""

UID = "kube-ccm/uid"
"""Label of a server: the UID of its machine."""

BALANCER_CLUSTER = "kube-ccm.cluster"
"""Label of a load balancer: the name of its cluster. Keys of those have no slash."""

BALANCER_CREDENTIALS = "kube-ccm.credentials"
"""Label of a load balancer: which credentials were last given to its observability."""
