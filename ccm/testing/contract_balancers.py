"""The provider contract about load balancers; part of `ccm.testing.contract`.

Offer `Cloud.load_balancer` and override the hooks of `Harness` about load balancers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ccm.cloud import errors
from ccm.cloud.interface import Cloud, LoadBalancer, LoadBalancerDigests, LoadBalancerRemoval
from ccm.cloud.types import Status
from ccm.model import Node, Service, ServicePort
from ccm.testing import probes
from ccm.testing.builders import DEFAULT_PORT
from ccm.testing.builders import node as build_node
from ccm.testing.builders import service as build_service
from ccm.testing.harness import PROMISED, Harness, HeldBalancer
from ccm.testing.probes import CLUSTER, outcome, retry_after_hints, same

HTTPS = ServicePort(name="https", port=443, target_port=8443, node_port=30443)
UDP = ServicePort(name="mdns", protocol="UDP", port=5353, target_port=5353, node_port=30953)
"""A UDP port that sorts after `DEFAULT_PORT` by name, port and node port.

The changes `tcp_twice` and `both_protocols` therefore differ in the protocol only.
"""

SCTP = ServicePort(name="signal", protocol="SCTP", port=2905, target_port=2905, node_port=30290)
"""A port with a protocol that few clouds support on load balancers."""

MOST_WRITES = 12
"""The cases simulate a crash at each write of a call, up to this number of writes."""

CHANGES: dict[str, dict[str, Any]] = {
    "port_added": {"ports": [DEFAULT_PORT, HTTPS]},
    "port_replaced": {"ports": [HTTPS]},
    "node_port_changed": {"ports": [msgspec.structs.replace(DEFAULT_PORT, node_port=30999)]},
    "port_renamed": {"ports": [msgspec.structs.replace(DEFAULT_PORT, name="web")]},
    "protocol_replaced": {"ports": [msgspec.structs.replace(DEFAULT_PORT, protocol="UDP")]},
    "tcp_twice": {"ports": [DEFAULT_PORT, msgspec.structs.replace(UDP, protocol="TCP")]},
    "udp": {"ports": [UDP]},
    "both_protocols": {"ports": [DEFAULT_PORT, UDP]},
    "source_ranges": {"load_balancer_source_ranges": ["10.0.0.0/8", "192.168.0.0/16"]},
    "ipv6": {"ip_families": ["IPv6"]},
    "dual_stack": {"ip_families": ["IPv4", "IPv6"]},
    "session_affinity": {"session_affinity": "ClientIP"},
    "local_traffic": {"external_traffic_policy": "Local", "health_check_node_port": 31000},
    "no_node_ports": {"allocate_load_balancer_node_ports": False},
}
"""Name of a change -> spec fields of the changed Service that differ from `build_service()`."""


@pytest.mark.asyncio
class BalancerCases:
    """Cases about load balancers. `ProviderContract` provides the fixtures."""

    async def test_no_load_balancer_is_none(self, cloud: Cloud) -> None:
        """Without a load balancer, get returns None, update raises NotFound and delete succeeds."""
        balancer = probes.balancer_of(cloud)
        service = build_service()

        same(await balancer.get_load_balancer(CLUSTER, service), None, "get without load balancer")
        result = await outcome(lambda: balancer.update_load_balancer(CLUSTER, service, []))
        probes.check_error(result, (errors.NotFound,), "update without load balancer")
        await balancer.ensure_load_balancer_deleted(CLUSTER, service)
        same(await balancer.get_load_balancer(CLUSTER, service), None, "get after the deletion")

    async def test_ensure_makes_one_load_balancer(self, cloud: Cloud, harness: Harness) -> None:
        """The load balancer has the Service's name, ports and nodes; ensure returns its address."""
        balancer = probes.balancer_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 2)

        status = await ensured(balancer, service, nodes)

        await _check_balancers(harness, balancer, [(service, nodes)])
        assert status.ingress, "load balancer has no address"
        for entry in status.ingress:
            assert bool(entry.ip) != bool(entry.hostname), f"expected an IP or a hostname: {entry}"
        same(await balancer.get_load_balancer(CLUSTER, service), status, "get after ensure")

    async def test_ensure_again_changes_nothing(self, cloud: Cloud, harness: Harness) -> None:
        """A second ensure makes no write, whatever the order of the nodes."""
        balancer = probes.balancer_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 3)
        first = await ensured(balancer, service, nodes)

        await _check_ensure_is_idempotent(harness, balancer, service, nodes[::-1], first)

    @pytest.mark.parametrize("change", sorted(CHANGES))
    async def test_ensure_converges(self, cloud: Cloud, harness: Harness, change: str) -> None:
        """Ensure applies a change of the Service and its reversal, or refuses the change."""
        balancer = probes.balancer_of(cloud)
        nodes = await probes.nodes(cloud, harness, 2)
        plain, changed = build_service(), build_service(**CHANGES[change])
        await ensured(balancer, plain, nodes)

        for service in (changed, plain):
            try:
                status = await ensured(balancer, service, nodes)
            except errors.InvalidArgument:
                return
            await _check_balancers(harness, balancer, [(service, nodes)])
            await _check_ensure_is_idempotent(harness, balancer, service, nodes, status)

    async def test_source_ranges_limit_who_is_let_in(self, cloud: Cloud, harness: Harness) -> None:
        """`ensure_load_balancer` adds and removes the Service's source ranges, or refuses them."""
        balancer = probes.balancer_of(cloud)
        probes.skip_if_opted_out(harness, "no_source_ranges")
        nodes = await probes.nodes(cloud, harness, 1)
        plain, limited = build_service(), build_service(**CHANGES["source_ranges"])
        await ensured(balancer, plain, nodes)

        for service in (limited, plain):
            free = probes.is_opted_out(harness, "free_writes")
            before = 0 if free else await harness.writes()
            try:
                await ensured(balancer, service, nodes)
            except errors.InvalidArgument:
                return
            held = await probes.find_balancer(harness, balancer, service)
            if held.source_ranges is not None:
                wanted = frozenset(service.spec.load_balancer_source_ranges or ())
                same(held.source_ranges, wanted, "source ranges in the cloud")
            elif not free:
                message = "source ranges are ignored: ensure with changed ranges made no write"
                assert await harness.writes() > before, message
            else:
                pytest.skip("source ranges unknown; set HeldBalancer.source_ranges")

    async def test_members_follow_the_nodes(self, cloud: Cloud, harness: Harness) -> None:
        """After each update or ensure, the members are exactly the given nodes, even if none."""
        balancer = probes.balancer_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 3)
        await ensured(balancer, service, nodes[:1])

        for members in (nodes, nodes[1:], [], nodes[:2]):
            await updated(balancer, service, members)
            await _check_balancers(harness, balancer, [(service, members)])
        for members in ([], nodes):
            await ensured(balancer, service, members)
            await _check_balancers(harness, balancer, [(service, members)])

    async def test_members_follow_although_ensure_refuses(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """If ensure refuses a port, the old ports stay, and update still changes the members."""
        balancer = probes.balancer_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 2)
        await ensured(balancer, service, nodes[:1])
        wrong = build_service(ports=[DEFAULT_PORT, SCTP])
        try:
            await ensured(balancer, wrong, nodes[:1])
        except errors.CloudError:
            await updated(balancer, wrong, nodes[1:])
            await _check_balancers(harness, balancer, [(service, nodes[1:])])
        else:
            pytest.skip("the cloud supports SCTP: ensure refuses nothing")

    async def test_a_refused_node_keeps_out_no_other(self, cloud: Cloud, harness: Harness) -> None:
        """A node without an instance may cause an error, but all other nodes become members."""
        balancer = probes.balancer_of(cloud)
        service, instance = build_service(), await harness.create()
        stale = await probes.node_of(cloud, instance)
        nodes = await probes.nodes(cloud, harness, 3)
        await harness.delete(instance)

        for members in (nodes[:1], nodes[:2]):
            try:
                status: object = await ensured(balancer, service, [stale, *members])
            except errors.CloudError as error:
                assert stale.name in str(error), f"error does not contain {stale.name}: {error}"
                status = error.partial
            assert isinstance(status, Status), f"CloudError.partial is not a Status: {status}"
            assert status.ingress, "load balancer has no address"
            await _check_members_except(harness, balancer, service, members, stale)

        result = await outcome(lambda: updated(balancer, service, [stale, *nodes]))
        if isinstance(result, probes.Raised):
            probes.check_error(result, (errors.CloudError,), "update with a node without instance")
        await _check_members_except(harness, balancer, service, nodes, stale)

    async def test_a_node_without_address_disturbs_nobody(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """A node without addresses may become a member or not; other nodes become members."""
        balancer = probes.balancer_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 1)

        await ensured(balancer, service, [*nodes, build_node("contract-bare")])

        held = await probes.find_balancer(harness, balancer, service)
        assert nodes[0].name in held.members, f"{nodes[0].name} is not a member: {held}"

    async def test_services_do_not_share(self, cloud: Cloud, harness: Harness) -> None:
        """Two Services with the same nodes have two load balancers, deleted independently."""
        balancer = probes.balancer_of(cloud)
        nodes = await probes.nodes(cloud, harness, 2)
        first, second = build_service("one"), build_service("other")
        await ensured(balancer, first, nodes)
        await ensured(balancer, second, nodes)
        await _check_balancers(harness, balancer, [(first, nodes), (second, nodes)])

        await deleted(balancer, first)

        await _check_balancers(harness, balancer, [(second, nodes)])

    async def test_clusters_do_not_share(self, cloud: Cloud, harness: Harness) -> None:
        """Two clusters in one project do not touch each other's load balancers."""
        balancer = probes.balancer_of(cloud)
        probes.skip_if_opted_out(harness, "no_cluster_marks")
        nodes = await probes.nodes(cloud, harness, 1)
        ours, theirs = build_service(uid="uid-1"), build_service(uid="uid-2")
        await ensured(balancer, ours, nodes)
        await ensured(balancer, theirs, nodes, cluster="other")
        await _check_balancers(harness, balancer, [(ours, nodes), (theirs, nodes)])

        if isinstance(balancer, LoadBalancerDigests):
            names = [record.name for record in await balancer.list_load_balancers(CLUSTER)]
            same(names, [balancer.get_load_balancer_name(CLUSTER, ours)], "names listed")
        await deleted(balancer, ours)
        if isinstance(balancer, LoadBalancerRemoval):
            own, other = (balancer.get_load_balancer_name(CLUSTER, one) for one in (ours, theirs))
            await balancer.delete_load_balancer(CLUSTER, own)
            removed = await outcome(lambda: balancer.delete_load_balancer(CLUSTER, other))
            if isinstance(removed, probes.Raised):
                probes.check_error(removed, (errors.FailedPrecondition,), "delete by name")

        await _check_balancers(harness, balancer, [(theirs, nodes)])

    async def test_one_that_was_there_before_is_not_deleted(
        self, cloud: Cloud, harness: Harness
    ) -> None:
        """A load balancer with the right name, but without labels of an owner, is never deleted.

        Ensure refuses or adopts it. The deletion of the Service removes only the listeners of an
        adopted load balancer.
        """
        balancer = probes.balancer_of(cloud)
        probes.skip_if_opted_out(harness, "names_are_marks")
        service, nodes = build_service(), await probes.nodes(cloud, harness, 1)
        name = balancer.get_load_balancer_name(CLUSTER, service)
        await harness.unmarked_load_balancer(name)

        result = await outcome(lambda: ensured(balancer, service, nodes))
        is_adopted = not isinstance(result, probes.Raised)
        if not is_adopted:
            refusals = (errors.FailedPrecondition, errors.AlreadyExists)
            probes.check_error(result, refusals, "ensure with a load balancer without owner")
        if is_adopted and isinstance(balancer, LoadBalancerDigests):
            (record,) = await balancer.list_load_balancers(CLUSTER)
            same(record.adopted, True, "`adopted` of the listed load balancer")
        if is_adopted and isinstance(balancer, LoadBalancerRemoval):
            removed = await outcome(lambda: balancer.delete_load_balancer(CLUSTER, name))
            if isinstance(removed, probes.Raised):
                probes.check_error(removed, (errors.FailedPrecondition,), "delete by name")
            same([lb.name for lb in await harness.load_balancers()], [name], "after delete by name")
        await deleted(balancer, service)

        held = await harness.load_balancers()
        same([lb.name for lb in held], [name], "load balancers after the deletion")
        if is_adopted:
            same(held[0].ports, frozenset(), "listeners of the deleted Service")
        same(await balancer.get_load_balancer(CLUSTER, service), None, "get after the deletion")

    async def test_delete_twice_is_silent(self, cloud: Cloud, harness: Harness) -> None:
        """Deleting removes everything; deleting again succeeds."""
        balancer = probes.balancer_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 1)
        await ensured(balancer, service, nodes)

        await deleted(balancer, service)
        await deleted(balancer, service)

        same(list(await harness.load_balancers()), [], "load balancers after the deletion")
        same(await balancer.get_load_balancer(CLUSTER, service), None, "get after the deletion")

    async def test_protection_is_an_error(self, cloud: Cloud, harness: Harness) -> None:
        """A deletion that the cloud refuses raises an error, or the opt-out says that it does not.

        In both cases the load balancer stays.
        """
        balancer = probes.balancer_of(cloud)
        service = build_service()
        await ensured(balancer, service, [])
        name = balancer.get_load_balancer_name(CLUSTER, service)
        await harness.protect(name, protected=True)

        result = await outcome(lambda: deleted(balancer, service))
        same([lb.name for lb in await harness.load_balancers()], [name], "protected load balancers")
        await harness.protect(name, protected=False)
        await deleted(balancer, service)

        if not probes.is_opted_out(harness, "protected_stay"):
            what = "deletion of a protected load balancer"
            probes.check_error(result, (errors.CloudError,), what)
        same(list(await harness.load_balancers()), [], "load balancers after the deletion")

    async def test_a_slow_cloud_is_not_waited_for(self, cloud: Cloud, harness: Harness) -> None:
        """During a slow creation, ensure raises RetryAfter and creates no second load balancer."""
        balancer = probes.balancer_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 1)
        await harness.slow_load_balancers(slow=True)

        for _ in range(2):
            result = await outcome(lambda: balancer.ensure_load_balancer(CLUSTER, service, nodes))
            probes.check_error(result, (errors.RetryAfter,), "ensure during a slow creation")
            error = result.error if isinstance(result, probes.Raised) else None
            assert isinstance(error, errors.RetryAfter)
            assert error.seconds > 0, f"RetryAfter.seconds is {error.seconds}, expected more than 0"
            same(len(await harness.load_balancers()), 1, "load balancers during a slow creation")
        await harness.slow_load_balancers(slow=False)

        await ensured(balancer, service, nodes)
        await _check_balancers(harness, balancer, [(service, nodes)])

    async def test_a_failure_tells_the_reason(self, cloud: Cloud, harness: Harness) -> None:
        """For a load balancer in a failed state, ensure raises an error with the cloud's reason."""
        balancer = probes.balancer_of(cloud)
        service = build_service()
        await ensured(balancer, service, [])
        name = balancer.get_load_balancer_name(CLUSTER, service)
        await harness.break_load_balancer(name, "contract: no host left")

        result = await outcome(lambda: balancer.ensure_load_balancer(CLUSTER, service, []))

        probes.check_error(result, (errors.CloudError,), "ensure of a failed load balancer")
        assert "contract: no host left" in str(getattr(result, "error", "")), (
            f"the cloud's reason is missing: {result}"
        )

    @pytest.mark.parametrize("what", ["ensure", "change", "delete"])
    async def test_a_crash_after_any_write_is_mended(
        self, cloud: Cloud, harness: Harness, what: str
    ) -> None:
        """After a crash at any write, a restarted provider completes the work without an orphan."""
        balancer = probes.balancer_of(cloud)
        nodes = await probes.nodes(cloud, harness, 2)
        plain, changed = build_service(), build_service(ports=[HTTPS])
        for number in range(1, MOST_WRITES + 1):
            if what != "ensure":
                await ensured(balancer, plain, nodes[:1])
            before = await harness.writes()
            await harness.lose_answer(number)
            await outcome(_work(balancer, what, changed, nodes))
            done = await harness.writes() - before
            await harness.heal()

            async with harness.open() as reopened:
                again = probes.balancer_of(reopened)
                await retry_after_hints(_work(again, what, changed, nodes))
                expected = [] if what == "delete" else [(changed, nodes)]
                await _check_balancers(harness, again, expected)
                await deleted(again, changed)
            same(
                list(await harness.load_balancers()),
                [],
                f"load balancers left after write {number}",
            )
            if done < number:
                return

    async def test_balancer_arguments_are_left_alone(self, cloud: Cloud, harness: Harness) -> None:
        """The provider does not modify Service and nodes."""
        balancer = probes.balancer_of(cloud)
        service = build_service(annotations={"note": "read-only"}, finalizers=["x/y"])
        nodes = await probes.nodes(cloud, harness, 2)
        before = msgspec.json.encode([service, nodes])

        for name, ask in _calls(balancer, service, nodes).items():
            await outcome(ask)
            assert msgspec.json.encode([service, nodes]) == before, f"{name} modified an argument"

    @pytest.mark.parametrize("fault", sorted(PROMISED))
    async def test_balancer_fault_arrives_as_promised(
        self, cloud: Cloud, harness: Harness, fault: str
    ) -> None:
        """Every call during a fault raises a promised error; afterwards ensure works."""
        balancer = probes.balancer_of(cloud)
        how = probes.fault_argument(harness, fault)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 2)
        await ensured(balancer, service, nodes[:1])

        await harness.fail(how)
        for name, ask in _calls(balancer, service, nodes).items():
            result = await probes.outcome_within_patience(harness, name, ask)
            probes.check_error(result, PROMISED[fault], f"{name} during {fault}")
        await harness.heal()

        await probes.retry_within_patience(harness, lambda: ensured(balancer, service, nodes))
        await _check_balancers(harness, balancer, [(service, nodes)])

    async def test_a_cancelled_ensure_is_adopted(self, cloud: Cloud, harness: Harness) -> None:
        """Ensure can be cancelled at any await; the next ensure ends with one load balancer."""
        balancer = probes.balancer_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 1)
        for steps in probes.CANCEL_AFTER:
            with probes.watch_tasks(harness) as started:
                await probes.cancel_after(
                    lambda: balancer.ensure_load_balancer(CLUSTER, service, nodes), steps=steps
                )
                await started.check_ended("after a cancelled ensure")

            await probes.retry_within_patience(harness, lambda: ensured(balancer, service, nodes))
            await _check_balancers(harness, balancer, [(service, nodes)])
            await deleted(balancer, service)

    async def test_balancer_surprises_are_survived(self, cloud: Cloud, harness: Harness) -> None:
        """Unknown fields and states in the cloud's responses change nothing."""
        balancer = probes.balancer_of(cloud)
        service, nodes = build_service(), await probes.nodes(cloud, harness, 1)
        status = await ensured(balancer, service, nodes)

        await harness.surprise(await harness.create())

        same(await balancer.get_load_balancer(CLUSTER, service), status, "get with unknown fields")
        same(await ensured(balancer, service, nodes), status, "ensure with unknown fields")


async def ensured(
    balancer: LoadBalancer, service: Service, nodes: Sequence[Node], *, cluster: str = CLUSTER
) -> Status:
    """Call `ensure_load_balancer` again as long as it raises `RetryAfter`."""
    return await retry_after_hints(lambda: balancer.ensure_load_balancer(cluster, service, nodes))


async def updated(balancer: LoadBalancer, service: Service, nodes: Sequence[Node]) -> None:
    """Call `update_load_balancer` again as long as it raises `RetryAfter`."""
    await retry_after_hints(lambda: balancer.update_load_balancer(CLUSTER, service, nodes))


async def deleted(balancer: LoadBalancer, service: Service) -> None:
    """Call `ensure_load_balancer_deleted` again as long as it raises `RetryAfter`."""
    await retry_after_hints(lambda: balancer.ensure_load_balancer_deleted(CLUSTER, service))


def _work(
    balancer: LoadBalancer, what: str, service: Service, nodes: Sequence[Node]
) -> Callable[[], Any]:
    if what == "delete":
        return lambda: deleted(balancer, service)
    return lambda: ensured(balancer, service, nodes)


def _calls(
    balancer: LoadBalancer, service: Service, nodes: Sequence[Node]
) -> dict[str, probes.Call]:
    questions: dict[str, probes.Call] = {
        "get_load_balancer": lambda: balancer.get_load_balancer(CLUSTER, service),
        "ensure_load_balancer": lambda: balancer.ensure_load_balancer(CLUSTER, service, nodes),
        "update_load_balancer": lambda: balancer.update_load_balancer(CLUSTER, service, nodes),
        "ensure_load_balancer_deleted": lambda: balancer.ensure_load_balancer_deleted(
            CLUSTER, service
        ),
    }
    if isinstance(balancer, LoadBalancerDigests):
        questions["list_load_balancers"] = lambda: balancer.list_load_balancers(CLUSTER)
    return questions


async def _check_ensure_is_idempotent(
    harness: Harness,
    balancer: LoadBalancer,
    service: Service,
    nodes: Sequence[Node],
    status: Status,
) -> None:
    """Fail unless a second ensure returns the same status and makes no write.

    Writes do not count for a cloud with the opt-out `free_writes`.
    """
    free = probes.is_opted_out(harness, "free_writes")
    before = 0 if free else await harness.writes()

    same(await ensured(balancer, service, nodes), status, "status of a second ensure")

    same(0 if free else await harness.writes(), before, "writes after a second ensure")
    await _check_balancers(harness, balancer, [(service, nodes)])


async def _check_members_except(
    harness: Harness, balancer: LoadBalancer, service: Service, nodes: Sequence[Node], other: Node
) -> None:
    """Fail unless the members are exactly `nodes`, with or without `other`."""
    held = await probes.find_balancer(harness, balancer, service)
    # A cloud whose members are addresses may know a deleted node by its address only.
    beside = {other.name, *(address.address for address in other.addresses)}
    same(held.members - beside, {node.name for node in nodes}, "members except the refused node")


async def _check_balancers(
    harness: Harness, balancer: LoadBalancer, expected: Sequence[tuple[Service, Sequence[Node]]]
) -> None:
    """Fail unless the cloud has exactly these load balancers; source ranges are not compared."""
    held = [replace(lb, source_ranges=None) for lb in await harness.load_balancers()]
    actual = sorted(held, key=lambda lb: lb.name)
    wanted = sorted(
        (probes.expected(balancer, service, nodes) for service, nodes in expected),
        key=lambda lb: lb.name,
    )
    if probes.is_opted_out(harness, "tcp_only"):
        actual, wanted = ([_only_tcp(lb) for lb in balancers] for balancers in (actual, wanted))
    same(actual, wanted, "load balancers in the cloud")


def _only_tcp(held: HeldBalancer) -> HeldBalancer:
    return replace(held, ports=frozenset(port for port in held.ports if port[0] == "TCP"))
