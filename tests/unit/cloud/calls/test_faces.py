"""The calls of one cluster's controllers: each asks its namesake in the cluster's name."""

from __future__ import annotations

from typing import Any

import pytest

from ccm.cloud import Cloud, Route, Service, Status, errors
from ccm.cloud.calls.handle import Handle
from ccm.cloud.calls.routes import RouteCalls
from ccm.cloud.calls.services import ServiceCalls
from ccm.model import ObjectMeta

WEB = Service(metadata=ObjectMeta(name="web", uid="u"))
ROUTE = Route(destination_cidr="10.0.0.0/24", target_node="n1")


class Logging:
    """Answers what it was told to, and logs who was asked."""

    def __init__(self, answer: object) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.answer = answer

    def _say(self, *asked: Any) -> Any:
        self.log.append(asked)
        return self.answer


class Balancers(Logging):
    async def get_load_balancer(self, *given: Any) -> Any:
        return self._say("get", *given)

    def get_load_balancer_name(self, *given: Any) -> Any:
        return self._say("name", *given)

    async def ensure_load_balancer(self, *given: Any) -> Any:
        return self._say("ensure", *given)

    async def update_load_balancer(self, *given: Any) -> Any:
        return self._say("update", *given)

    async def ensure_load_balancer_deleted(self, *given: Any) -> Any:
        return self._say("delete", *given)


class Listed(Balancers):
    async def list_load_balancers(self, *given: Any) -> Any:
        return self._say("list", *given)

    def load_balancer_digest(self, *given: Any) -> Any:
        return self._say("digest", *given)


class Routes(Logging):
    async def list_routes(self, *given: Any) -> Any:
        return self._say("list", *given)

    async def create_route(self, *given: Any) -> Any:
        return self._say("create", *given)

    async def delete_route(self, *given: Any) -> Any:
        return self._say("delete", *given)


def services(balancers: Any) -> ServiceCalls:
    return ServiceCalls(Handle(Cloud(name="fake", load_balancer=balancers)), cluster_name="c1")


async def test_calls_about_load_balancers() -> None:
    balancers = Listed(Status())
    calls = services(balancers)

    assert await calls.get(WEB) == Status()
    assert await calls.ensure(WEB, ()) == Status()
    await calls.update(WEB, ())
    await calls.ensure_deleted(WEB)
    balancers.answer = []
    assert await calls.list() == []
    balancers.answer = "x"
    assert (calls.name(WEB), calls.digest(WEB, ())) == ("x", "x")

    assert balancers.log == [
        ("get", "c1", WEB),
        ("ensure", "c1", WEB, ()),
        ("update", "c1", WEB, ()),
        ("delete", "c1", WEB),
        ("list", "c1"),
        ("name", "c1", WEB),
        ("digest", "c1", WEB, ()),
    ]


async def test_what_is_not_offered_is_unimplemented() -> None:
    with pytest.raises(errors.Unimplemented, match="load balancers"):
        await services(None).get(WEB)
    plain = services(Balancers(None))
    assert not plain.has_digests
    assert services(Listed(None)).has_digests
    with pytest.raises(errors.Unimplemented, match="digests"):
        plain.digest(WEB, ())


async def test_calls_about_routes() -> None:
    routes: Any = Routes([ROUTE])
    calls = RouteCalls(Handle(Cloud(name="fake", routes=routes)), cluster_name="c1")

    await calls.create("hint", ROUTE)
    await calls.delete(ROUTE)
    assert await calls.list() == [ROUTE]

    assert routes.log == [("create", "c1", "hint", ROUTE), ("delete", "c1", ROUTE), ("list", "c1")]
