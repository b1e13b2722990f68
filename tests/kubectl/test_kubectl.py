"""The built-in API server driven by the real kubectl, and beside it the real server.

Each test runs kubectl as a person would. `test_both_servers_answer_alike` gives the
same commands to both servers and wants the same output, once what must differ (times,
ages, UIDs, revisions, the words of a refusal) is taken out.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ccm.sandbox import kubelet
from tests.kubectl.tool import Kubectl, transcript
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.envtest, pytest.mark.timeout(120)]

NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    **kubelet.new_node("w1", "2026-01-01T00:00:00Z"),
}
EVENT: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"name": "w1.synced", "namespace": "default"},
    "involvedObject": {"kind": "Node", "name": "w1", "uid": "w1"},
    "type": "Normal",
    "reason": "Synced",
    "message": "Node synced successfully",
    "source": {"component": "cloud-node-controller"},
    "count": 2,
    "firstTimestamp": "2026-01-01T00:00:00Z",
    "lastTimestamp": "2026-01-01T00:05:00Z",
}


@pytest.fixture
def node(kubectl: Kubectl) -> Kubectl:
    """kubectl with one node there."""
    assert kubectl("create", "-f", "-", stdin=NODE) == "node/w1 created\n"
    return kubectl


def test_kubectl_creates_objects_of_several_kinds(kubectl: Kubectl) -> None:
    assert kubectl("create", "namespace", "made") == "namespace/made created\n"
    kubectl("create", "configmap", "cm", "-n", "made", "--from-literal=a=b")
    kubectl("create", "secret", "generic", "s", "-n", "made", "--from-literal=a=b")
    kubectl("create", "serviceaccount", "sa", "-n", "made")
    kubectl("create", "service", "clusterip", "svc", "-n", "made", "--tcp=80:8080")
    kubectl("run", "p", "--image=example.com/p:1", "-n", "made")

    data = kubectl("get", "configmap", "cm", "-n", "made", "-o", "jsonpath={.data}")
    secret = kubectl("get", "secret", "s", "-n", "made", "-o", "jsonpath={.data.a}")
    names = kubectl("get", "cm,secret,sa,svc,pod", "-n", "made", "-o", "name").split()

    assert json.loads(data) == {"a": "b"}
    assert secret == "Yg=="
    assert names == ["configmap/cm", "secret/s", "serviceaccount/sa", "service/svc", "pod/p"]
    kubectl("delete", "namespace", "made", "--wait", f"--timeout={DEADLINE_S:g}s")
    assert "made" not in kubectl("get", "namespaces")


def test_delete_waits_for_finalizers(node: Kubectl) -> None:
    node("patch", "node", "w1", "-p", '{"metadata":{"finalizers":["example.com/x"]}}')
    status, output = node.run("delete", "node", "w1", "--wait", "--timeout=300ms")
    assert status == 1
    assert "timed out waiting for the condition" in output
    with node.following("delete", "node", "w1", "--wait") as deleting:
        # kubectl prints that when the server accepted the request, and then waits.
        assert deleting.stdout is not None
        assert deleting.stdout.readline() == 'node "w1" deleted\n'
        assert deleting.poll() is None
        node("patch", "node", "w1", "-p", '{"metadata":{"finalizers":null}}')
        assert deleting.wait(timeout=DEADLINE_S) == 0
    status, output = node.run("get", "node", "w1")
    assert (status, output) == (1, 'Error from server (NotFound): nodes "w1" not found\n')


def test_drain_evicts_the_pods_of_a_node(node: Kubectl) -> None:
    spec = {"nodeName": "w1", "containers": [{"name": "c", "image": "example.com/p:1"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    node("create", "-f", "-", stdin=pod)

    said = node("drain", "w1", "--force", "--grace-period=0")

    assert "evicting pod default/p" in said
    assert said.endswith("node/w1 drained\n")
    assert node("get", "pods", "-o", "name") == ""


def test_get_with_watch_follows_changes(node: Kubectl) -> None:
    with node.following("get", "nodes", "-o", "wide", "-w") as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith("NAME")
        assert watching.stdout.readline().startswith("w1")
        node("cordon", "w1")
        assert "NotReady,SchedulingDisabled" in watching.stdout.readline()


def test_kubectl_shows_version_resources_and_permissions(kubectl: Kubectl) -> None:
    assert "Server Version: v1.36.3" in kubectl("version")
    resources = kubectl("api-resources")
    assert re.search(r"^nodes +no +v1 +false +Node$", resources, re.MULTILINE)
    assert re.search(r"^leases +coordination\.k8s\.io/v1 +true +Lease$", resources, re.MULTILINE)
    assert kubectl("auth", "can-i", "create", "pods") == "yes\n"


_SCRIPT: tuple[tuple[Any, ...], ...] = (
    ("create", "-f", "-", NODE),
    ("create", "-f", "-", NODE),
    ("create", "-f", "-", EVENT),
    ("get", "nodes"),
    ("get", "nodes", "-o", "wide"),
    ("get", "node", "w1", "-o", "yaml"),
    ("get", "node", "w1", "-o", "json"),
    # The real server may have events of its own.
    ("get", "events", "--field-selector", "involvedObject.name=w1"),
    ("get", "events", "--field-selector", "involvedObject.name=w1", "-o", "wide"),
    ("get", "events", "--field-selector", "reason=Other", "-o", "name"),
    ("get", "nodes", "-o", "name", "--chunk-size=1", "-l", "zone notin (b),!x"),
    ("describe", "node", "w1"),
    ("label", "node", "w1", "a=b"),
    ("label", "node", "w1", "a=b"),
    ("label", "node", "w1", "a=c"),
    ("label", "node", "w1", "a=c", "--overwrite"),
    ("annotate", "node", "w1", "x=y"),
    ("taint", "node", "w1", "k=v:NoSchedule"),
    ("taint", "node", "w1", "k=v:NoSchedule"),
    ("taint", "node", "w1", "k:NoSchedule-"),
    ("taint", "node", "w1", "k:NoSchedule-"),
    ("patch", "node", "w1", "-p", '{"spec":{"providerID":"sim://1"}}'),
    ("patch", "node", "w1", "-p", '{"spec":{"providerID":"sim://1"}}'),
    ("patch", "node", "w1", "-p", '{"spec":{"providerID":"sim://2"}}'),
    ("patch", "node", "w1", "-p", '{"spec":{"taints":[{"key":"a","effect":"Maybe"}]}}'),
    ("patch", "node", "w1", "--type=merge", "-p", '{"metadata":{"labels":{"a":null}}}'),
    (
        *("patch", "node", "w1", "--subresource=status", "-p"),
        '{"status":{"conditions":[{"type":"Other","status":"False"}]}}',
    ),
    (
        *("patch", "node", "w1", "--subresource=status", "-p"),
        '{"status":{"addresses":[{"$patch":"replace"},{"type":"ExternalIP","address":"1.1.1.1"}]}}',
    ),
    ("cordon", "w1"),
    ("uncordon", "w1"),
    ("get", "node", "w1", "-o", "json"),
    ("apply", "-f", "-", NODE),
    ("apply", "-f", "-", NODE),
    ("apply", "--server-side", "--force-conflicts", "-f", "-", NODE),
    ("get", "node", "w1", "-o", "jsonpath={.spec}"),
    ("get", "node", "nope"),
    ("create", "-f", "-", {**NODE, "spec": {"foo": 1}}),
    ("create", "configmap", "cm", "--from-literal=a=b"),
    ("get", "configmap", "cm"),
    ("get", "configmap", "cm", "-o", "yaml"),
    ("get", "nodes", "--field-selector", "spec.foo=1"),
    ("delete", "configmap", "cm"),
    ("delete", "node", "w1"),
    ("delete", "node", "w1"),
    ("get", "nodes"),
)


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


_SERVICES: tuple[tuple[Any, ...], ...] = (
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
    ("scale", "deployment", "d", "--replicas=3"),
    ("scale", "deployment", "d", "--replicas=0", "--current-replicas=2"),
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


def test_the_kubernetes_service_is_recreated_after_its_deletion(kubectl: Kubectl) -> None:
    before = kubectl("get", "service", "kubernetes", "-o", "jsonpath={.metadata.uid}")

    kubectl("delete", "service", "kubernetes")

    assert re.search(r"kubernetes +ClusterIP +10\.96\.0\.1 +<none> +443/TCP", kubectl("get", "svc"))
    assert kubectl("get", "svc", "kubernetes", "-o", "jsonpath={.metadata.uid}") != before


@pytest.mark.parametrize(("script", "drop"), [(_SCRIPT, r"(?!)"), (_SERVICES, _EVENTS)])
def test_both_servers_answer_alike(
    script: Any, drop: str, kubectl: Kubectl, real_kubectl: Kubectl
) -> None:
    assert transcript(kubectl, script, drop=drop) == transcript(real_kubectl, script, drop=drop)
