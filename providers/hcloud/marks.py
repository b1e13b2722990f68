"""Labels that say whose something is."""

from __future__ import annotations

SERVICE_UID = "hcloud-ccm/service-uid"
"""UID of the Service that has a load balancer; the vendor's. A promise to old clusters."""

ADOPTED = "kube-ccm/adopted"
"""That a load balancer was there before its Service, which found it by its name: it is released
with the Service, and never deleted."""

CLUSTER = "kube-ccm/cluster"
"""The name of the cluster that made it; of a machine, the marker of its cluster."""

NAMESPACE = "kube-ccm/namespace"
POOL = "kube-ccm/pool"
NAME = "kube-ccm/name"
UID = "kube-ccm/uid"
"""The rest of a machine's identity."""

NUMBER = "kube-ccm/volume"
"""Which of a machine's volumes it is."""
