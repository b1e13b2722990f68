"""Typed calls: paths, parameters, bodies and content types as the API conventions want them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ccm.base.throttle import Unlimited
from ccm.kube import errors
from ccm.kube.client import Client, Resource
from ccm.kube.resources import LEASES, NODES
from ccm.model import Lease, LeaseSpec, Node, ObjectMeta
from tests.unit.kube.proxy import (
    Server,
    a_status,
    connect,
    no_answer,
    says,
    sends,
    streams,
)

NODE = {"metadata": {"name": "n1", "resourceVersion": "5"}}
LEASE = {"metadata": {"name": "ccm", "namespace": "kube-system"}}


@pytest.fixture
def client(server: Server) -> Client:
    return Client(server.transport, name="node-controller")


@pytest.fixture
def nodes(client: Client) -> Resource[Node]:
    return client.resource(NODES)


@pytest.fixture
def leases(client: Client) -> Resource[Lease]:
    return client.resource(LEASES)


async def test_a_client_appends_its_name_to_the_user_agent(server: Server, client: Client) -> None:
    assert await client.raw("GET", "/version") == b"{}"

    expected = "ccm/1.0 (linux/amd64) kubernetes/abc1234/node-controller"
    assert server.seen[0].headers["User-Agent"] == expected


async def test_each_client_has_its_own_limiter(server: Server) -> None:
    class Counting(Unlimited):
        turns = 0

        async def acquire(self) -> float:
            self.turns += 1
            return 0.0

    one, two = Counting(), Counting()
    server.will(says(NODE))

    async with connect(server.url) as transport:
        await Client(transport, name="one", limiter=one).resource(NODES).get("n1")
        await Client(transport, name="two", limiter=two).raw("GET", "/version")
        await Client(transport, name="three").raw("GET", "/version")

    assert (one.turns, two.turns) == (1, 1)


async def test_get_reads_one_object(server: Server, nodes: Resource[Node]) -> None:
    server.will(says(NODE))

    node = await nodes.get("n1")

    assert (node.name, node.resource_version) == ("n1", "5")
    assert server.seen[0].target == "/api/v1/nodes/n1"


async def test_what_is_no_object_is_no_answer(server: Server, nodes: Resource[Node]) -> None:
    server.will(sends(b"<html>"))

    with no_answer("garbage"):
        await nodes.get("n1")


async def test_pages_follow_the_token(server: Server, leases: Resource[Lease]) -> None:
    server.will(
        says({"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [LEASE]}),
        says({"metadata": {"resourceVersion": "9"}, "items": None}),
    )

    found = leases.pages(namespace="kube-system", field_selector="metadata.name=ccm")
    pages = [page async for page in found]

    assert [len(page.items) for page in pages] == [1, 0]
    assert [page.resource_version for page in pages] == ["9", "9"]
    assert {seen.path for seen in server.seen} == {
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    }
    assert [seen.query for seen in server.seen] == [
        {"limit": "500", "fieldSelector": "metadata.name=ccm"},
        {"limit": "500", "fieldSelector": "metadata.name=ccm", "continue": "more"},
    ]


async def test_create_says_what_it_creates(server: Server, leases: Resource[Lease]) -> None:
    server.will(says(LEASE, status=201), says(LEASE, status=201))
    lease = Lease(
        metadata=ObjectMeta(name="ccm", namespace="kube-system"),
        spec=LeaseSpec(holder_identity="me", lease_transitions=0),
    )

    await leases.create(lease)
    await leases.create({"metadata": {"name": "ccm"}}, namespace="kube-system")

    assert [(seen.method, seen.path) for seen in server.seen] == [
        ("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases")
    ] * 2
    assert server.seen[0].json == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "ccm", "namespace": "kube-system"},
        "spec": {"holderIdentity": "me", "leaseTransitions": 0},
    }
    assert server.seen[1].json["kind"] == "Lease"


async def test_a_complete_kind_is_replaced(server: Server, leases: Resource[Lease]) -> None:
    server.will(says(LEASE))
    meta = ObjectMeta(name="ccm", namespace="kube-system", resource_version="5")

    await leases.replace(Lease(metadata=meta))

    seen = server.seen[0]
    assert (seen.method, seen.path) == (
        "PUT",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/ccm",
    )
    assert seen.json["metadata"]["resourceVersion"] == "5"


async def test_a_narrow_kind_is_never_replaced(server: Server, nodes: Resource[Node]) -> None:
    with pytest.raises(TypeError, match="patch"):
        await nodes.replace(Node(metadata=ObjectMeta(name="n1")))

    assert server.seen == []


@pytest.mark.parametrize(
    ("verb", "content_type"),
    [
        ("patch_strategic", "application/strategic-merge-patch+json"),
        ("patch_merge", "application/merge-patch+json"),
    ],
)
async def test_a_patch_says_its_kind(
    server: Server, nodes: Resource[Node], verb: str, content_type: str
) -> None:
    server.will(says(NODE))
    patch = {"spec": {"x": None}}

    node = await getattr(nodes, verb)("n1", patch, subresource="status")

    seen = server.seen[0]
    assert node.name == "n1"
    assert (seen.method, seen.target) == ("PATCH", "/api/v1/nodes/n1/status")
    assert seen.headers["Content-Type"] == content_type
    assert seen.json == patch


async def test_delete_carries_its_precondition(server: Server, nodes: Resource[Node]) -> None:
    await nodes.delete("n1")
    await nodes.delete("n1", uid="u")
    await nodes.delete("n1", uid="u", resource_version="7")

    options = {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert [(seen.method, seen.target) for seen in server.seen] == [
        ("DELETE", "/api/v1/nodes/n1")
    ] * 3
    assert [seen.json for seen in server.seen] == [
        options,
        {**options, "preconditions": {"uid": "u"}},
        {**options, "preconditions": {"uid": "u", "resourceVersion": "7"}},
    ]


async def test_an_object_needs_its_namespace_and_its_name(
    nodes: Resource[Node], leases: Resource[Lease], server: Server
) -> None:
    with pytest.raises(ValueError, match="needs a namespace"):
        await leases.get("ccm")
    with pytest.raises(ValueError, match="has no namespace"):
        await nodes.get("n1", namespace="x")
    with pytest.raises(ValueError, match="needs a name"):
        await nodes.delete("")

    assert server.seen == []


def _line(event: str, body: Any) -> bytes:
    return json.dumps({"type": event, "object": body}).encode() + b"\n"


async def test_a_watch_yields_its_events(server: Server, nodes: Resource[Node]) -> None:
    bookmark = {"metadata": {"resourceVersion": "8"}}
    server.will(
        streams(_line("ADDED", NODE), _line("MODIFIED", {"spec": 1}), _line("BOOKMARK", bookmark))
    )

    async with nodes.watch(resource_version="4", timeout_s=300) as events:
        found = [event async for event in events]

    assert [event.type for event in found] == ["ADDED", "MALFORMED", "BOOKMARK"]
    assert [event.resource_version for event in found] == ["5", "", "8"]
    assert server.seen[0].query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
        "resourceVersion": "4",
    }


async def test_a_watch_may_begin_with_the_present_objects(
    server: Server, leases: Resource[Lease]
) -> None:
    server.will(streams())

    async with leases.watch(
        namespace="kube-system",
        timeout_s=60,
        send_initial_events=True,
        field_selector="metadata.name=ccm",
    ) as events:
        assert [event async for event in events] == []

    assert server.seen[0].path.endswith("/namespaces/kube-system/leases")
    assert server.seen[0].query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "60",
        "resourceVersion": "",
        "resourceVersionMatch": "NotOlderThan",
        "sendInitialEvents": "true",
        "fieldSelector": "metadata.name=ccm",
    }


async def test_an_error_event_ends_the_watch(server: Server, nodes: Resource[Node]) -> None:
    server.will(streams(_line("ADDED", NODE), _line("ERROR", a_status(410, "Expired"))))
    async with nodes.watch(resource_version="1", timeout_s=60) as events:
        first = await anext(events)
        with pytest.raises(errors.Gone):
            await anext(events)

    assert first.key == "n1"


async def test_a_silent_watch_is_given_up(server: Server, nodes: Resource[Node]) -> None:
    server.will(streams(_line("ADDED", NODE), hold=True))

    async with nodes.watch(timeout_s=60, idle_timeout_s=0.1) as events:
        await anext(events)
        with no_answer("silent"):
            await anext(events)

    assert "resourceVersion" not in server.seen[0].query
