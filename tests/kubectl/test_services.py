"""kubectl and Services: made, exposed, shown, described, changed and deleted.

`test_both_servers_answer_alike` gives one script to the built-in server and to the real
one.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.kubectl.tool import Kubectl, transcript

pytestmark = [pytest.mark.envtest, pytest.mark.timeout(120)]

FINALIZER = "service.kubernetes.io/load-balancer-cleanup"
HELD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "held", "labels": {"set": "mine"}, "finalizers": [FINALIZER]},
    "spec": {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": "held"}},
}
_STATUS = {
    "loadBalancer": {"ingress": [{"ip": "192.0.2.7"}, {"hostname": "lb.example.com"}]},
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Made",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ],
}
_MINE = "component!=apiserver"
# The real server repairs its allocations from time to time and may record that as an event.
_EVENTS = r"(?ms)^Events:.*\Z"

_SCRIPT: tuple[tuple[Any, ...], ...] = (
    ("create", "service", "loadbalancer", "web", "--tcp=80"),
    ("create", "service", "loadbalancer", "web", "--tcp=80"),
    ("create", "service", "nodeport", "np", "--tcp=80:8080", "--node-port=30100"),
    ("create", "service", "nodeport", "np2", "--tcp=80", "--node-port=30100"),
    ("create", "service", "clusterip", "none", "--tcp=80", "--clusterip=None"),
    ("create", "service", "clusterip", "bare"),
    ("create", "service", "externalname", "ext", "--external-name=example.com"),
    ("run", "p", "--image=example.com/p:1", "--port=8080", "--labels=app=p,tier=x"),
    ("expose", "pod", "p", "--port=80", "--target-port=8080"),
    ("expose", "pod", "p", "--name=p-lb", "--type=LoadBalancer"),
    ("expose", "pod", "p", "--name=p-udp", "--protocol=UDP", "--session-affinity=ClientIP"),
    ("expose", "service", "p", "--name=again", "--type=NodePort"),
    ("create", "deployment", "d", "--image=example.com/d:1", "--port=90"),
    ("expose", "deployment", "d", "--type=LoadBalancer"),
    ("get", "deployments", "-o", "wide"),
    ("create", "-f", "-", HELD),
    ("get", "services", "-l", _MINE),
    ("get", "services", "-l", _MINE, "-o", "wide"),
    ("get", "svc", "--field-selector", "spec.type=ExternalName"),
    ("get", "all", "-l", _MINE),
    ("get", "service", "web", "-o", "yaml"),
    ("get", "service", "web", "-o", "json"),
    ("describe", "service", "web"),
    ("describe", "service", "p-udp"),
    ("describe", "service", "ext"),
    ("describe", "service", "none"),
    ("patch", "service", "held", "--subresource=status", "-p", json.dumps({"status": _STATUS})),
    ("get", "service", "held"),
    ("get", "service", "held", "-o", "wide"),
    ("get", "service", "held", "-o", "jsonpath={.status}"),
    ("describe", "service", "held"),
    ("patch", "service", "web", "-p", '{"spec":{"externalTrafficPolicy":"Local"}}'),
    ("describe", "service", "web"),
    ("patch", "service", "web", "-p", '{"spec":{"ports":[{"port":443,"name":"tls"}]}}'),
    ("patch", "service", "web", "-p", '{"spec":{"loadBalancerClass":"example.com/lb"}}'),
    ("patch", "service", "web", "-p", '{"spec":{"clusterIP":"10.96.7.7"}}'),
    ("patch", "service", "web", "-p", '{"spec":{"type":"ClusterIP"}}'),
    ("get", "service", "web", "-o", "jsonpath={.spec}"),
    ("set", "selector", "service", "web", "app=other"),
    ("label", "service", "web", "a=b"),
    ("apply", "-f", "-", {**HELD, "spec": {**HELD["spec"], "ports": [{"port": 81}]}}),
    ("get", "service", "held", "-o", "jsonpath={.spec.ports}"),
    ("delete", "service", "web"),
    ("delete", "service", "web"),
    ("delete", "service", "held", "--wait=false"),
    ("get", "service", "held", "-o", "yaml"),
    ("delete", "service", "held", "--timeout=100ms"),
    ("patch", "service", "held", "--type=merge", "-p", '{"metadata":{"finalizers":null}}'),
    ("get", "service", "held"),
    ("delete", "deployments,pods", "--all", "--now"),
    ("delete", "services", "-l", _MINE),
    ("get", "services", "-l", _MINE),
)


def test_the_service_of_the_api_server_comes_back(kubectl: Kubectl) -> None:
    before = kubectl("get", "service", "kubernetes", "-o", "jsonpath={.metadata.uid}")

    kubectl("delete", "service", "kubernetes")

    assert re.search(r"kubernetes +ClusterIP +10\.96\.0\.1 +<none> +443/TCP", kubectl("get", "svc"))
    assert kubectl("get", "svc", "kubernetes", "-o", "jsonpath={.metadata.uid}") != before


def test_both_servers_answer_alike(kubectl: Kubectl, real_kubectl: Kubectl) -> None:
    ours = transcript(kubectl, _SCRIPT, drop=_EVENTS)

    assert "service/p exposed" in ours
    assert ours == transcript(real_kubectl, _SCRIPT, drop=_EVENTS)
