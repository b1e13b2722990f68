"""Checks of a provider that the simulated cloud cannot show."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import pytest_asyncio

from ccm import cloud
from ccm.app import options
from ccm.cloud import registry
from ccm.doctor import nodes, provider
from ccm.doctor.case import Case, ok
from ccm.kube.client import Client
from ccm.testing import builders
from tests.contract.memory import MemoryApi, MemoryProvider

CLOSED = "the provider cannot be opened"

Make = Callable[..., Awaitable[Case]]


@pytest_asyncio.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes a case with an open provider that offers what it is told to."""
    cases: list[Case] = []

    async def made(*words: str, fault: Exception | None = None, **offered: Any) -> Case:
        @cloud.provider(sdk="2.0")
        async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
            if fault is not None:
                raise fault
            yield cloud.Cloud(name="memory", **offered)

        entry = EntryPoint("memory", "here:open_cloud", registry.GROUP)
        monkeypatch.setattr(registry, "entry_points", lambda *, group: [entry])
        monkeypatch.setattr(EntryPoint, "load", lambda _entry: open_cloud)
        given = options.parse(["--cloud-provider=memory", *words])
        case = Case(options=given, environ={})
        cases.append(case)
        for name, check in (("provider", provider.provider), ("open", provider.cloud_config)):
            case.findings[name] = await check(case)
        return case

    yield made
    for case in cases:
        await case.exits.aclose()


def having(case: Case, *names: str) -> None:
    """The cluster's nodes are these."""
    case.findings["identity"] = ok("somebody")
    case._nodes = [builders.node(name) for name in names]


async def test_objects_without_a_mark_are_a_failure_unless_allowed(make: Make) -> None:
    strict = await make()
    allowed = await make("--allow-untagged-cloud")
    marked = await make(has_cluster_id=True)

    found = [(await provider.cluster_id(case)).verdict.value for case in (strict, allowed, marked)]

    assert found == ["fail", "warn", "ok"]


async def test_a_provider_that_lists_nothing_is_asked_about_nodes(make: Make) -> None:
    api = MemoryApi()
    api.create("a")
    case = await make(instances=MemoryProvider(api))

    none = await provider.cloud(case)
    having(case, "a", "b")
    one = await provider.cloud(case)
    missing = await nodes.instances(case)

    assert none.found.startswith("not asked: this provider lists nothing")
    assert one == ok("the cloud answers: the instance of a exists")
    assert missing.found == "1 of 2 nodes has no instance: b"


async def test_credentials_of_such_a_provider_are_tried_too(make: Make) -> None:
    api = MemoryApi()
    case = await make(instances=MemoryProvider(api))
    having(case, "a")
    api.token = "changed"

    assert (await provider.cloud(case)).found.startswith(
        "the cloud does not accept the credentials: "
    )


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (cloud.Unavailable("no route"), f"{CLOSED}: the cloud does not answer: no route"),
        (cloud.DeadlineExceeded("late"), f"{CLOSED}: the cloud does not answer: late"),
        (
            ZeroDivisionError("x"),
            f"{CLOSED}: the cloud answers with a fault: ZeroDivisionError: x",
        ),
        (cloud.ConfigError("one is wrong", "two too"), "no --cloud-config: one is wrong"),
    ],
)
async def test_a_provider_that_does_not_open(make: Make, fault: Exception, found: str) -> None:
    case = await make(fault=fault)

    assert case.findings["open"].found == found
    assert case.findings["open"].advice != ()


async def test_what_is_left_out_is_said(make: Make) -> None:
    none = await provider.controllers(await make("--cluster-cidr=10.0.0.0/8"))
    assert none.found == "none would work with these flags"
    assert "cloud-node-controller is left out: the provider offers no instances" in none.details

    offered = MemoryProvider(MemoryApi())
    case = await make("--configure-cloud-routes=false", instances=offered)

    assert await provider.controllers(case) == ok(
        "cloud-node-controller, cloud-node-lifecycle-controller",
        "service-lb-controller is left out: the provider offers no load balancers",
        "node-route-controller is left out: --configure-cloud-routes is false",
    )


async def test_a_provider_may_read_the_cluster_and_not_write_it() -> None:
    sent: list[str] = []

    class Wire(Client):
        """Answers everything."""

        def __init__(self) -> None:
            self.name = ""

        async def raw(self, method: str, path: str, **_how: Any) -> bytes:
            sent.append(f"{method} {path}")
            return b"{}"

    client = provider.ReadOnlyClients(Wire()).client("memory")

    assert await client.request("GET", "/api/v1/nodes") == b"{}"
    for method in ("POST", "PUT", "PATCH", "DELETE", "patch"):
        with pytest.raises(cloud.FailedPrecondition, match="nothing is written"):
            await client.request(method, "/api/v1/nodes/a")
    assert sent == ["GET /api/v1/nodes"]
