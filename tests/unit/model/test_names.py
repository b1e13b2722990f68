"""Names are an API: their exact text is a promise to every cluster."""

from __future__ import annotations

from ccm.model import names

PROMISED = {
    "TAINT_UNINITIALIZED": "node.cloudprovider.kubernetes.io/uninitialized",
    "TAINT_SHUTDOWN": "node.cloudprovider.kubernetes.io/shutdown",
    "ANNOTATION_PROVIDED_NODE_IP": "alpha.kubernetes.io/provided-node-ip",
    "LABEL_ZONE_BETA": "failure-domain.beta.kubernetes.io/zone",
    "LABEL_ZONE": "topology.kubernetes.io/zone",
    "LABEL_REGION_BETA": "failure-domain.beta.kubernetes.io/region",
    "LABEL_REGION": "topology.kubernetes.io/region",
    "LABEL_INSTANCE_TYPE_BETA": "beta.kubernetes.io/instance-type",
    "LABEL_INSTANCE_TYPE": "node.kubernetes.io/instance-type",
    "REASON_SYNCED": "Synced",
    "REASON_INITIALIZATION_FAILED": "InitializationFailed",
    "REASON_DELETING_NODE": "DeletingNode",
    "REASON_DELETING_NODE_FAILED": "DeletingNodeFailed",
    "REASON_LEADER_ELECTION": "LeaderElection",
    "COMPONENT_NODE": "cloud-node-controller",
    "COMPONENT_NODE_LIFECYCLE": "cloud-node-lifecycle-controller",
}


def test_promised_names_never_change() -> None:
    assert {name: getattr(names, name) for name in PROMISED} == PROMISED


def test_no_two_constants_promise_the_same_text() -> None:
    texts = [
        value
        for name, value in vars(names).items()
        if name.startswith(("TAINT_", "LABEL_", "ANNOTATION_", "REASON_", "COMPONENT_"))
        and isinstance(value, str)
    ]

    assert sorted(texts) == sorted(set(texts))
