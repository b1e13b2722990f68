"""The guarded calls about load balancers and routes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from ccm.cloud import Cloud, LoadBalancerRecord, Route, Service, Status, errors
from ccm.cloud.blocking import blocking
from ccm.cloud.guarded import Guarded
from ccm.cloud.interface import LoadBalancer, Routes
from ccm.cloud.route_calls import RouteCalls
from ccm.cloud.service_calls import ServiceCalls
from ccm.model import Node, ObjectMeta

WEB = Service(metadata=ObjectMeta(name="web", uid="u"))


class Balancers:
    """Answers what it was told to, and logs who was asked."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.answer: Any = None
        self.error: Exception | None = None

    def _say(self, *asked: Any) -> Any:
        self.log.append(asked)
        if self.error is not None:
            raise self.error
        return self.answer

    async def get_load_balancer(self, cluster_name: str, service: Service) -> Any:
        return self._say("get", cluster_name)

    def get_load_balancer_name(self, cluster_name: str, service: Service) -> str:
        return str(self._say("name", cluster_name))

    async def ensure_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> Any:
        return self._say("ensure", cluster_name, nodes)

    async def update_load_balancer(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> Any:
        return self._say("update", cluster_name, nodes)

    async def ensure_load_balancer_deleted(self, cluster_name: str, service: Service) -> Any:
        return self._say("delete", cluster_name)


class Listed(Balancers):
    async def list_load_balancers(self, cluster_name: str) -> Any:
        return self._say("list", cluster_name)

    def load_balancer_digest(
        self, cluster_name: str, service: Service, nodes: Sequence[Node]
    ) -> str:
        return str(self._say("digest", cluster_name, nodes))


class FakeRoutes:
    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.answer: Any = None

    async def list_routes(self, cluster_name: str) -> Any:
        self.log.append(("list", cluster_name))
        return self.answer

    async def create_route(self, cluster_name: str, name_hint: str, route: Route) -> None:
        self.log.append(("create", cluster_name, name_hint, route))

    async def delete_route(self, cluster_name: str, route: Route) -> None:
        self.log.append(("delete", cluster_name, route))


def calls(balancers: Balancers | None) -> ServiceCalls:
    cloud = Cloud(name="fake", load_balancer=cast("LoadBalancer | None", balancers))
    return ServiceCalls(Guarded(cloud), cluster_name="c1")


async def test_each_call_carries_the_clusters_name() -> None:
    balancers = Listed()
    balancers.answer = Status()
    guarded = calls(balancers)

    assert await guarded.get(WEB) == Status()
    assert await guarded.ensure(WEB, ()) == Status()
    await guarded.update(WEB, ())
    await guarded.ensure_deleted(WEB)
    balancers.answer = [LoadBalancerRecord(name="a", digest="d")]
    assert list(await guarded.list()) == balancers.answer
    balancers.answer = "x"
    assert (guarded.name(WEB), guarded.digest(WEB, ())) == ("x", "x")

    assert [asked[:2] for asked in balancers.log] == [
        (what, "c1") for what in ("get", "ensure", "update", "delete", "list", "name", "digest")
    ]


async def test_a_forgotten_return_is_a_fault_and_no_answer() -> None:
    guarded = calls(Listed())

    assert await guarded.get(WEB) is None
    with pytest.raises(errors.Internal, match="answered None"):
        await guarded.ensure(WEB, ())
    with pytest.raises(errors.Internal, match="answered None"):
        await guarded.list()


@pytest.mark.parametrize("answer", [False, "", [], ["x"], "lb-1"])
async def test_an_answer_of_another_kind_is_a_fault(answer: object) -> None:
    """Above all no absence: that would end a deletion with the load balancer still there."""
    balancers = Listed()
    balancers.answer = answer
    guarded = calls(balancers)

    with pytest.raises(errors.Internal, match=r"get_load_balancer answered .*, not a Status"):
        await guarded.get(WEB)
    with pytest.raises(errors.Internal, match="ensure_load_balancer answered"):
        await guarded.ensure(WEB, ())
    if answer != []:
        with pytest.raises(errors.Internal, match="list_load_balancers answered"):
            await guarded.list()


async def test_calls_about_one_service_do_not_overlap_with_one_that_never_ends() -> None:
    never = asyncio.Event()

    class Hanging(Balancers):
        async def ensure_load_balancer(self, *_: Any) -> Any:
            while not never.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await never.wait()

    hanging = Hanging()
    cloud = Cloud(name="fake", load_balancer=cast("LoadBalancer", hanging))
    guarded = ServiceCalls(Guarded(cloud, deadline_s=0.01), cluster_name="c1")
    other = Service(metadata=ObjectMeta(name="web", uid="v"))
    with pytest.raises(errors.DeadlineExceeded):
        await guarded.ensure(WEB, ())

    for late in (guarded.get(WEB), guarded.update(WEB, ()), guarded.ensure_deleted(WEB)):
        with pytest.raises(errors.Aborted):
            await late
    assert hanging.log == []
    await guarded.ensure_deleted(other)
    assert [asked[0] for asked in hanging.log] == ["delete"]

    never.set()


async def test_calls_about_one_service_do_not_overlap_in_threads_either() -> None:
    release, at_work = threading.Event(), []

    class Synchronous(Balancers):
        def work(self, name: str) -> None:
            at_work.append(name)
            release.wait(10)
            at_work.remove(name)

        async def ensure_load_balancer(self, *_: Any) -> Any:
            await blocking(self.work, "ensure")
            return Status()

    cloud = Cloud(name="fake", load_balancer=cast("LoadBalancer", Synchronous()))
    guarded = ServiceCalls(Guarded(cloud, deadline_s=0.05), cluster_name="c1")
    with pytest.raises(errors.DeadlineExceeded):
        await guarded.ensure(WEB, ())

    with pytest.raises(errors.Aborted):
        await guarded.ensure(WEB, ())
    assert at_work == ["ensure"]

    release.set()
    async with asyncio.timeout(5):
        while True:
            with contextlib.suppress(errors.Aborted):
                assert await guarded.ensure(WEB, ()) == Status()
                break
            await asyncio.sleep(0.01)


async def test_what_is_not_offered_is_unimplemented() -> None:
    with pytest.raises(errors.Unimplemented, match="load balancers"):
        await calls(None).get(WEB)
    plain = calls(Balancers())
    assert not plain.has_digests
    assert calls(Listed()).has_digests
    with pytest.raises(errors.Unimplemented, match="digests"):
        plain.digest(WEB, ())


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(KeyError("x"), errors.Internal), (errors.OutOfRange("x"), errors.OutOfRange)],
)
def test_a_computed_answer_fails_with_a_cloud_error(
    raised: Exception, kind: type[errors.CloudError]
) -> None:
    balancers = Listed()
    balancers.error = raised

    with pytest.raises(kind) as caught:
        calls(balancers).digest(WEB, ())
    assert caught.value.__cause__ is not caught.value


async def test_calls_about_routes() -> None:
    routes, told = FakeRoutes(), []
    guard = Guarded(Cloud(name="fake", routes=cast("Routes", routes)))
    guarded = RouteCalls(guard, cluster_name="c1", observer=lambda *outcome: told.append(outcome))
    route = Route(destination_cidr="10.0.0.0/24", target_node="n1")

    await guarded.create("hint", route)
    await guarded.delete(route)
    with pytest.raises(errors.Internal, match="answered None"):
        await guarded.list()
    routes.answer = [route]
    assert list(await guarded.list()) == [route]

    assert routes.log[:2] == [("create", "c1", "hint", route), ("delete", "c1", route)]
    assert told == [
        ("create_route", "success"),
        ("delete_route", "success"),
        ("list_routes", "error"),
        ("list_routes", "success"),
    ]
    with pytest.raises(errors.Unimplemented, match="routes"):
        await RouteCalls(Guarded(Cloud(name="fake")), cluster_name="c1").list()
