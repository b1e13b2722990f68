"""What `kube-ccm explain` says first of an object that is stuck: the cause, and when it goes on."""

from __future__ import annotations

import pytest

from ccm.base.fence import Fence
from ccm.cloud import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    Rate,
    ResourceExhausted,
    RetryAfter,
    Unauthenticated,
    Unavailable,
    address,
)
from ccm.doctor.explain import verdict
from ccm.model import Node
from ccm.testing.builders import node, uninitialized_taint
from tests.unit.doctor.explain.stuck_world import Stuck

pytestmark = pytest.mark.virtual_time

WAITS = [uninitialized_taint()]
WEB = "default/web"


@pytest.fixture
def stuck() -> Stuck:
    return Stuck()


def routed(name: str, cidr: str = "10.120.1.0/24") -> Node:
    """A node that a route can lead to."""
    return node(
        name,
        provider_id=f"fake://{name}",
        ready="True",
        pod_cidrs=[cidr],
        addresses=[address("InternalIP", "10.0.0.1")],
    )


async def test_the_cloud_refuses_the_credentials(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", taints=WAITS))
    stuck.instances.faults["*"] = Unauthenticated("401 unauthorized")
    async with stuck.leading():
        await stuck.pass_time(12)

        assert stuck.says("node", "n1") == (
            "n1 is not initialised: the cloud refused the credentials (401 unauthorized) 12 s ago; "
            "next try in 18 s"
        )
        await stuck.pass_time(120)
        assert "3 times in a row" in stuck.says("node", "n1")


async def test_no_instance_has_the_nodes_name(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1.example", taints=WAITS))
    async with stuck.leading():
        await stuck.pass_time(100)

        said = stuck.says("node", "n1.example")
        assert said.startswith(
            "n1.example is not initialised: the cloud does not know an instance named n1.example "
            "(no instance is named n1.example) "
        )
        assert "next try in" in said


async def test_the_provider_id_is_another_clouds(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", provider_id="other://i-1", taints=WAITS))
    async with stuck.leading():
        assert stuck.says("node", "n1") == (
            "n1 is not this daemon's: its provider ID other://i-1 is of another cloud (this "
            "daemon's: fake://)"
        )


async def test_the_labels_are_another_managers(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", taints=WAITS))
    async with stuck.leading("--own-nodes=cloud=ours"):
        assert "is not this daemon's: its labels are not those" in stuck.says("node", "n1")


async def test_the_cloud_does_not_answer(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", taints=WAITS))
    stuck.instances.hangs.add("n1")
    async with stuck.leading():
        await stuck.pass_time(45)
        assert stuck.says("node", "n1") == (
            "n1 is not initialised: the cloud has not answered instance_metadata for 45 s; given "
            "up after 60 s"
        )

        stuck.instances.hangs.clear()
        stuck.instances.faults["n1"] = DeadlineExceeded("504 gateway timeout")
        await stuck.pass_time(16)
        assert "the cloud did not answer in time (504 gateway timeout)" in stuck.says("node", "n1")


async def test_the_limit_of_calls_is_used_up(stuck: Stuck) -> None:
    stuck.rate = Rate(qps=0.01, burst=1)
    for name in ("n1", "n2"):
        stuck.nodes.put(node(name, taints=WAITS))
        stuck.instances.there.add(name)
    async with stuck.leading("--concurrent-node-syncs=2", "--controllers=cloud-node"):
        await stuck.pass_time(20)

        assert stuck.says("node", "n2") == (
            "n2 is not initialised: instance_metadata has waited 20 s for its turn: the limit of "
            "calls to the cloud is used up"
        )


async def test_the_kubelet_never_waited_for_a_cloud(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", provider_id="", ready="True", pod_cidrs=["10.120.1.0/24"]))
    async with stuck.leading():
        await stuck.pass_time(10)

        assert "its kubelet does not leave it to a cloud" in stuck.says("node", "n1")


async def test_a_node_that_is_not_ready_though_its_instance_is_there(stuck: Stuck) -> None:
    stuck.nodes.put(
        node("n1", provider_id="fake://n1", ready="Unknown", pod_cidrs=["10.120.1.0/24"])
    )
    stuck.instances.there.add("n1")
    async with stuck.leading("--controllers=*,-route"):
        await stuck.pass_time(60)

        assert stuck.says("node", "n1").startswith(
            "n1 is not ready, and nothing is to be done (not ready, its instance is there, "
        )
        assert verdict.judge(stuck.case("node", "n1")).advice == ("look at its kubelet",)


async def test_a_cloud_that_denies_all_deletes_nothing(stuck: Stuck) -> None:
    for number in range(5):
        stuck.nodes.put(node(f"n{number}", provider_id=f"fake://n{number}", ready="Unknown"))
    async with stuck.leading():
        await stuck.pass_time(60)

        said = stuck.says("node", "n3")
        assert said.startswith("n3 is not ready: it is not deleted although its cloud denies it: ")
        assert "the cloud confirms no instance of the cluster" in said


async def test_the_brake_holds_a_node(stuck: Stuck) -> None:
    for number in range(9):
        ready = "Unknown" if number < 2 else "True"
        stuck.nodes.put(node(f"n{number}", provider_id=f"fake://n{number}", ready=ready))
        stuck.instances.there.add(f"n{number}")
    stuck.instances.there -= {"n0", "n1"}
    async with stuck.leading("--node-deletion-limit=1"):
        await stuck.pass_time(60)

        (left,) = {"n0", "n1"} - set(stuck.nodes.deleted)
        assert "as many nodes as may be were deleted lately" in stuck.says("node", left)


async def test_a_node_without_pod_range_gets_no_route(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", provider_id="fake://n1", ready="True"))
    async with stuck.leading():
        await stuck.pass_time(10)

        assert stuck.says("node", "n1") == (
            "n1 has no route to its Pods: it has no Pod range (spec.podCIDRs is empty), and so "
            "gets no route"
        )


async def test_a_pod_range_is_none_of_the_clusters(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", provider_id="fake://n1", ready="True", pod_cidrs=["10.99.1.0/24"]))
    async with stuck.leading():
        await stuck.pass_time(10)

        assert "its Pod range 10.99.1.0/24 is outside of --cluster-cidr=10.120.0.0/16" in (
            stuck.says("node", "n1")
        )


async def test_a_node_without_addresses_gets_no_route_yet(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", provider_id="fake://n1", ready="True", pod_cidrs=["10.120.1.0/24"]))
    async with stuck.leading():
        await stuck.pass_time(12)

        assert stuck.says("node", "n1") == (
            "n1 has no route to its Pods: it has no address yet (status.addresses is empty)"
        )


async def test_a_route_is_refused(stuck: Stuck) -> None:
    stuck.nodes.put(routed("n1"))
    stuck.routes.faults["create"] = ResourceExhausted("403 50 routes are the limit")
    async with stuck.leading():
        await stuck.pass_time(12)

        assert stuck.says("node", "n1") == (
            "n1 has no route to its Pods: a quota or limit of the cloud is reached (403 50 routes "
            "are the limit) 12 s ago; next try in 18 s"
        )


async def test_routes_cannot_be_listed(stuck: Stuck) -> None:
    stuck.nodes.put(routed("n1"))
    stuck.routes.faults["list"] = Unavailable("503 no backend")
    async with stuck.leading():
        await stuck.pass_time(30)

        assert "the cloud cannot be reached, or is in trouble (503 no backend)" in (
            stuck.says("node", "n1")
        )


async def test_the_class_is_another_controllers(stuck: Stuck) -> None:
    stuck.services.service(loadBalancerClass="metallb")
    async with stuck.leading("--load-balancer-classes=example.com/ours"):
        assert stuck.says("service", WEB) == (
            "default/web is not this daemon's: it asks for a load balancer of class metallb, which "
            "is another controller's (this daemon's: example.com/ours)"
        )


async def test_a_load_balancer_takes_long(stuck: Stuck) -> None:
    stuck.services.service()
    stuck.balancers.slow.add("ensure")
    async with stuck.leading():
        await stuck.pass_time(300)

        assert stuck.says("service", WEB) == (
            "default/web has no load balancer: the cloud has not answered ensure_load_balancer for "
            "5 min; given up after 15 min"
        )


async def test_the_quota_is_used_up(stuck: Stuck) -> None:
    stuck.services.service()
    stuck.balancers.faults["ensure"] = ResourceExhausted("422 floating IPs: 3 of 3")
    async with stuck.leading():
        await stuck.pass_time(20)

        assert stuck.says("service", WEB) == (
            "default/web has no load balancer: a quota or limit of the cloud is reached (422 "
            "floating IPs: 3 of 3) 20 s ago; next try in 10 s"
        )


async def test_an_annotation_is_refused(stuck: Stuck) -> None:
    stuck.services.service()
    stuck.balancers.faults["ensure"] = InvalidArgument("annotation fake/size: 'huge' is no size")
    async with stuck.leading():
        await stuck.pass_time(60)

        assert stuck.says("service", WEB) == (
            "default/web has no load balancer: the cloud refuses what it asks for (annotation "
            "fake/size: 'huge' is no size) 60 s ago; next try in 9 min"
        )


async def test_the_lease_may_have_run_out(stuck: Stuck) -> None:
    stuck.services.service()
    Fence().govern()
    async with stuck.leading():
        await stuck.pass_time(3)

        said = stuck.says("service", WEB)
        assert said.startswith(
            "default/web has no load balancer: nothing was begun, because the daemon's lease may "
            "have run out 3 s ago; next try in "
        )


async def test_the_cloud_is_still_at_it(stuck: Stuck) -> None:
    stuck.services.service()
    stuck.balancers.faults["ensure"] = RetryAfter("the balancer is being made", seconds=30)
    async with stuck.leading():
        await stuck.pass_time(10)

        said = stuck.says("service", WEB)
        assert "the cloud asked to come back later (the balancer is being made) 10 s ago" in said


async def test_a_deletion_fails(stuck: Stuck) -> None:
    stuck.services.service()
    async with stuck.leading():
        await stuck.pass_time(5)
        stuck.balancers.faults["delete"] = FailedPrecondition("409 the IP is protected")
        stuck.services.delete()
        await stuck.pass_time(30)

        assert stuck.says("service", WEB) == (
            "default/web cannot be deleted yet: something has to be changed first (409 the IP is "
            "protected) 30 s ago; next try in 10 min"
        )


async def test_many_services_are_missing(stuck: Stuck) -> None:
    names = [f"shop-{number}" for number in range(9)]
    for name in names:
        stuck.services.service(name)
    async with stuck.leading():
        await stuck.pass_time(10)
        for name in names:
            stuck.services.vanish(f"default/{name}")
        await stuck.pass_time(30)

        assert stuck.says("service", "default/shop-3") == (
            "service default/shop-3 does not exist: many Services are gone though nobody saw them "
            "deleted, so their load balancers stay until the Services are back"
        )


async def test_many_nodes_are_missing_and_their_routes_stay(stuck: Stuck) -> None:
    names = [f"n{number}" for number in range(9)]
    for number, name in enumerate(names):
        stuck.nodes.put(routed(name, f"10.120.{number}.0/24"))
    async with stuck.leading("--controllers=route"):
        await stuck.pass_time(30)
        for name in names:
            stuck.nodes.lose(name)
        await stuck.pass_time(60)

        assert stuck.says("node", "n3").startswith(
            "node n3 does not exist: many nodes are gone, or have no Pod range any more, though "
            "nobody saw them deleted, so their routes stay"
        )


async def test_a_controller_is_turned_off(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", taints=WAITS))
    async with stuck.leading("--controllers=*,-cloud-node"):
        assert stuck.says("node", "n1") == (
            "n1 is not initialised: controller cloud-node-controller is not running: it is turned "
            "off by --controllers"
        )


async def test_all_is_well(stuck: Stuck) -> None:
    stuck.nodes.put(node("n1", taints=WAITS, ready="True", pod_cidrs=["10.120.1.0/24"]))
    stuck.instances.there.add("n1")
    stuck.services.service()
    async with stuck.leading():
        await stuck.pass_time(30)

        assert "n1 is ready, and nothing is to be done" in stuck.says("node", "n1")
        assert "is served at ip-of-" in stuck.says("service", WEB)
        assert stuck.case("node", "n1").answer is not None
