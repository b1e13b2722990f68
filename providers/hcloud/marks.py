"""Labels that say whose something is."""

from __future__ import annotations

import re
from hashlib import sha256

SERVICE_UID = "hcloud-ccm/service-uid"
"""UID of the Service that has a load balancer; the vendor's. A promise to old clusters."""

CLUSTER = "kube-ccm/cluster"
"""The name of the cluster that made it; of a machine, the marker of its cluster."""

POOL = "kube-ccm/pool"
NAME = "kube-ccm/name"
UID = "kube-ccm/uid"
"""The rest of a machine's identity."""

NUMBER = "kube-ccm/volume"
"""Which of a machine's volumes it is."""

_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def is_label_value(text: str) -> bool:
    """Whether a label may have that value."""
    return _VALUE.fullmatch(text) is not None


def label_value(text: str) -> str:
    """The text itself, or where it cannot stand in a label one that is made of it."""
    return text if is_label_value(text) else sha256(text.encode()).hexdigest()[:40]
