"""Writes of the service controller, on both API servers."""

from __future__ import annotations

import pytest

from ccm.cloud.errors import ImplementedElsewhere
from tests.conformance.service.environment import ServiceEnvironment, ingress
from tests.support.services import F
from tests.waiting import due_by, eventually

ENSURED = [("Normal", "EnsuringLoadBalancer"), ("Normal", "EnsuredLoadBalancer")]
DELETED = [("Normal", "DeletingLoadBalancer"), ("Normal", "DeletedLoadBalancer")]


@pytest.fixture(autouse=True)
def address_the_server_accepts(services: ServiceEnvironment) -> None:
    services.balancers.address = "192.0.2.7"


@pytest.mark.row("service-sync-02", "service-order-01", "service-wire-01")
@pytest.mark.both_servers
async def test_sync_writes_finalizer_then_calls_provider_then_writes_status(
    services: ServiceEnvironment,
) -> None:
    await services.node("n1")
    async with services.running():
        created = await services.create()
        service = await services.until(address=True)
        await services.calls("ensure")

        assert service["metadata"]["finalizers"] == [F]
        assert [(entry["ip"], entry["ipMode"]) for entry in ingress(service)] == [
            ("192.0.2.7", "VIP")
        ]
        assert service["spec"] == created["spec"]
        assert await services.reasons() == ENSURED
        (first, finalizer), (second, status) = services.writes()
        assert first == second == "PATCH /web/status"
        version = created["metadata"]["resourceVersion"]
        assert finalizer == {"metadata": {"resourceVersion": version, "finalizers": [F]}}
        assert sorted(status) == ["metadata", "status"]
        assert status["status"] == {"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}}
        # The provider saw the Service as it was after the finalizer had been written.
        assert F in services.balancers.given[0].finalizers


@pytest.mark.row("service-sync-05", "service-wire-02")
@pytest.mark.both_servers
async def test_deletion_keeps_the_finalizers_of_other_controllers(
    services: ServiceEnvironment,
) -> None:
    async with services.running():
        service = await services.settle(metadata={"finalizers": ["example.com/other"]})
        assert service["metadata"]["finalizers"] == ["example.com/other", F]

        await services.delete()
        await services.until(address=False, finalizers=["example.com/other"])

        assert services.balancers.held == {}
        await services.change({"metadata": {"finalizers": None}})
        await services.until(gone=True)
        await services.calls("ensure", "get", "delete")
        assert await services.reasons() == [
            ENSURED[0],
            ("Warning", "UnAvailableLoadBalancer"),
            ENSURED[1],
            *DELETED,
        ]
        assert "null" not in str([body.get("metadata") for _, body in services.writes()])


@pytest.mark.row("service-sync-05")
async def test_deleted_service_loses_its_balancer_and_finalizer(
    services: ServiceEnvironment,
) -> None:
    async with services.running():
        await services.settle()
        await services.delete()
        await services.until(gone=True)

        await services.calls("ensure", "get", "delete")
        assert services.balancers.held == {}
        assert len(services.writes()) == 3


@pytest.mark.row("service-sync-04")
async def test_type_change_removes_finalizer_and_address(services: ServiceEnvironment) -> None:
    async with services.running():
        await services.settle()
        await services.change({"spec": {"type": "ClusterIP"}})
        await services.until(address=False, finalizers=[])
        await services.calls("ensure", "get", "delete")


@pytest.mark.row("service-repair-01")
async def test_removed_finalizer_and_status_are_restored(services: ServiceEnvironment) -> None:
    async with services.running():
        await services.settle()
        await services.change({"metadata": {"finalizers": None}})
        await services.change({"status": {"loadBalancer": None}}, subresource="status")
        await services.until(address=True, finalizers=[F])
        await services.calls("ensure")


@pytest.mark.row("service-delete-02")
async def test_balancer_is_deleted_though_our_finalizer_was_removed(
    services: ServiceEnvironment,
) -> None:
    async with services.running():
        await services.settle()
        await services.change({"metadata": {"finalizers": None}})
        await services.delete()
        await services.until(gone=True)
        await eventually(lambda: services.balancers.held == {})


@pytest.mark.row("service-elsewhere-01")
async def test_service_implemented_elsewhere_gets_only_the_finalizer(
    services: ServiceEnvironment,
) -> None:
    services.balancers.faults["ensure"] = ImplementedElsewhere("not ours")
    await services.node("n1")
    async with services.running():
        await services.create()
        await services.calls("ensure")

        service = await services.until()
        assert service["metadata"]["finalizers"] == [F]
        assert await services.reasons() == ENSURED[:1]
        assert len(services.writes()) == 1


@pytest.mark.row("service-restart-02")
async def test_a_restart_with_a_listing_writes_nothing(services: ServiceEnvironment) -> None:
    await services.node("n1")
    async with services.running():
        for number in range(5):
            await services.create(f"web{number}")
        for number in range(5):
            await services.until(address=True, name=f"web{number}")
        await services.calls(*["ensure"] * 5)
    writes = len(services.writes())

    services.listing()
    services.balancers.address = "192.0.2.7"
    async with services.running():
        await services.calls("list")
        await due_by(0.2)

        assert len(services.writes()) == writes
        assert services.balancers.calls == ["list"]


@pytest.mark.row("service-switch-01")
async def test_service_of_the_go_implementation_is_taken_over_unwritten(
    services: ServiceEnvironment,
) -> None:
    """Finalizer and status of the Go implementation are those that this controller would write."""
    await services.node("n1")
    await services.create(metadata={"finalizers": [F]})
    await services.change(
        {"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.7", "ipMode": "VIP"}]}}},
        subresource="status",
    )
    async with services.running():
        await services.calls("ensure")

        assert services.writes() == []


@pytest.mark.row("service-class-01")
async def test_service_of_a_foreign_load_balancer_class_is_never_touched(
    services: ServiceEnvironment,
) -> None:
    async with services.running():
        await services.create(loadBalancerClass="example.com/theirs", metadata={"finalizers": [F]})
        await services.delete()
        await due_by(0.3)

        assert services.writes() == []
        assert services.balancers.calls == []
        service = await services.until()
        assert service["metadata"]["finalizers"] == [F]
    await services.change({"metadata": {"finalizers": None}})


@pytest.mark.row("service-class-02", "service-shape-01")
@pytest.mark.both_servers
async def test_claimed_class_and_all_spec_fields_reach_the_provider(
    services: ServiceEnvironment,
) -> None:
    ports = [
        {"name": "http", "port": 80, "protocol": "TCP", "targetPort": "web"},
        {"name": "dns", "port": 53, "protocol": "UDP", "appProtocol": "example.com/dns"},
    ]
    async with services.running(classes=("example.com/mine",)):
        await services.settle(
            loadBalancerClass="example.com/mine",
            ports=ports,
            allocateLoadBalancerNodePorts=False,
            externalTrafficPolicy="Local",
            loadBalancerSourceRanges=["10.0.0.0/8"],
        )

        given = services.balancers.given[0].spec
        assert [(each.port, each.protocol, each.target_port) for each in given.ports or ()] == [
            (80, "TCP", "web"),
            (53, "UDP", 53),
        ]
        assert given.allocate_load_balancer_node_ports is False
        assert given.external_traffic_policy == "Local"
        assert given.load_balancer_source_ranges == ["10.0.0.0/8"]
        assert given.load_balancer_class == "example.com/mine"


@pytest.mark.row("service-nodes-04")
async def test_new_node_becomes_a_load_balancer_member(services: ServiceEnvironment) -> None:
    async with services.running():
        await services.settle()
        await services.node("n1")
        await services.calls("ensure", "update")

        assert services.balancers.of("update") == [("web", ("n1",))]
