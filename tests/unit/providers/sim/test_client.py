"""The client against the cloud: paging, and each fault as the promised class."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from providers.sim import client, config, faults, server, traffic, world


def settings(url: str) -> config.Config:
    return config.Config(url=url, token="a-tokens-text", timeout=timedelta(seconds=1))


@pytest_asyncio.fixture
async def api(url: str) -> AsyncIterator[client.Client]:
    async with client.open_client(settings(url)) as api:
        yield api


@pytest.fixture
def instance(service: server.Service) -> str:
    return service.world.put(world.GivenInstance(name="a")).id


def body(**fields: object) -> faults.Fault:
    return faults.Fault(kind="garbage", body=msgspec.json.encode(fields).decode())


@pytest.mark.parametrize(
    ("fault", "promised"),
    [
        (faults.Fault(kind="error", status=404, code="not_found"), cloud.NotFound),
        (faults.Fault(kind="error", status=404, code="no_such_path"), cloud.Unknown),
        (faults.Fault(kind="error", status=409, code="busy"), cloud.RetryAfter),
        (faults.Fault(kind="error", status=409, code="conflict"), cloud.AlreadyExists),
        (faults.Fault(kind="error", status=409, code="protected"), cloud.FailedPrecondition),
        (faults.Fault(kind="garbage", status=404), cloud.Unknown),
        (faults.Fault(kind="garbage", body="{}"), cloud.Unknown),
        (faults.Fault(kind="latency", delay_s=5.0), cloud.DeadlineExceeded),
    ],
    ids=lambda value: f"{value.kind}-{value.code}" if isinstance(value, faults.Fault) else "",
)
async def test_each_fault_arrives_as_the_promised_class_and_then_it_goes_on(
    service: server.Service,
    api: client.Client,
    instance: str,
    fault: faults.Fault,
    promised: type[cloud.CloudError],
) -> None:
    service.script.add(fault)

    for question in (api.server(instance), api.servers("a"), api.servers()):
        with pytest.raises(cloud.CloudError) as caught:
            await question
        assert type(caught.value) is promised

    service.script.clear()
    assert (await api.server(instance)).name == "a"


async def test_a_message_holds_the_clouds_words(
    service: server.Service, api: client.Client, instance: str
) -> None:
    service.script.add(faults.Fault(kind="error", status=500, code="oops", message="disk on fire"))

    with pytest.raises(cloud.Unavailable) as caught:
        await api.server(instance)

    assert "HTTP 500 oops: disk on fire (req-1)" in str(caught.value)


@pytest.mark.parametrize(("number", "requests"), [(0, 1), (50, 1), (51, 2), (230, 5)])
async def test_a_listing_follows_all_pages_and_counts_them(
    service: server.Service, api: client.Client, number: int, requests: int
) -> None:
    names = [f"n{index}" for index in range(number)]
    service.world.put_all([world.GivenInstance(name=name) for name in names])
    service.change_settings(traffic.Settings(page_size=50))

    found, counted = await api.servers()

    assert [one.name for one in found] == names
    assert counted == requests == service.calls.counts["list_instances"]


async def test_a_fault_on_a_later_page_is_never_a_short_listing(
    service: server.Service, api: client.Client
) -> None:
    service.world.put_all([world.GivenInstance(name=f"n{index}") for index in range(5)])
    service.change_settings(traffic.Settings(page_size=2))
    service.script.add(faults.Fault(kind="error", skip=2))

    with pytest.raises(cloud.Unavailable):
        await api.servers()


@pytest.mark.parametrize(
    "answer",
    [
        {"instances": []},
        {"instances": [], "next_cursor": "again"},
        {"id": "i-other", "name": "a", "state": "running"},
    ],
    ids=["no cursor field", "the same cursor for ever", "another instance"],
)
async def test_an_answer_to_another_question_is_refused(
    service: server.Service, api: client.Client, instance: str, answer: dict[str, object]
) -> None:
    service.script.add(body(**answer))

    with pytest.raises(cloud.Unknown):
        await (api.server(instance) if "id" in answer else api.servers())


async def test_unknown_fields_and_words_are_tolerated(
    service: server.Service, api: client.Client, instance: str
) -> None:
    addresses = [{"kind": "carrier_pigeon", "value": "coo", "ring": 7}]
    service.script.add(
        body(id=instance, name="a", state="dreaming", addresses=addresses, price=3.5)
    )

    found = await api.server(instance)

    assert (found.state, found.addresses[0].kind) == ("dreaming", "carrier_pigeon")
