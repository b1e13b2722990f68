"""The client against the cloud: paging, and each fault as the promised class."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from providers.sim import client, config, faults, server, world


def settings(url: str, *, token: str = "secret") -> config.Config:
    return config.Config(url=url, token=token, timeout=timedelta(seconds=1))


@pytest_asyncio.fixture
async def api(url: str) -> AsyncIterator[client.Client]:
    async with client.open_client(settings(url)) as api:
        yield api


@pytest.fixture
def instance(service: server.Service) -> str:
    return service.world.put(world.GivenInstance(name="a")).id


def body(**fields: object) -> faults.Fault:
    return faults.Fault(kind="garbage", body=msgspec.json.encode(fields).decode())


FAULTS = [
    (faults.Fault(kind="error", status=400), cloud.InvalidArgument),
    (faults.Fault(kind="error", status=401), cloud.Unauthenticated),
    (faults.Fault(kind="error", status=403), cloud.PermissionDenied),
    (faults.Fault(kind="error", status=404, code="not_found"), cloud.NotFound),
    (faults.Fault(kind="error", status=404, code="no_such_path"), cloud.Unknown),
    (faults.Fault(kind="error", status=409), cloud.Aborted),
    (faults.Fault(kind="error", status=418), cloud.Unknown),
    (faults.Fault(kind="error", status=500), cloud.Unavailable),
    (faults.Fault(kind="error", status=500, code="not_found"), cloud.Unavailable),
    (faults.Fault(kind="error", status=503), cloud.Unavailable),
    (faults.Fault(kind="error", status=504), cloud.DeadlineExceeded),
    (faults.Fault(kind="rate_limit"), cloud.RetryAfter),
    (faults.Fault(kind="garbage"), cloud.Unknown),
    (faults.Fault(kind="garbage", status=302), cloud.Unknown),
    (faults.Fault(kind="garbage", status=404), cloud.Unknown),
    (faults.Fault(kind="garbage", status=502), cloud.Unavailable),
    (faults.Fault(kind="garbage", body="{}"), cloud.Unknown),
    (faults.Fault(kind="garbage", body="null"), cloud.Unknown),
    (faults.Fault(kind="empty"), cloud.Unknown),
    (faults.Fault(kind="empty", status=204), cloud.Unknown),
    (faults.Fault(kind="empty", status=404), cloud.Unknown),
    (faults.Fault(kind="hang"), cloud.DeadlineExceeded),
    (faults.Fault(kind="latency", delay_s=5.0), cloud.DeadlineExceeded),
    (faults.Fault(kind="drop"), cloud.Unavailable),
]


@pytest.mark.parametrize(
    ("fault", "promised"),
    FAULTS,
    ids=[f"{one.kind}-{one.status}-{number}" for number, (one, _) in enumerate(FAULTS)],
)
async def test_each_fault_arrives_as_the_promised_class(
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


async def test_after_the_fault_the_client_goes_on(
    service: server.Service, api: client.Client, instance: str
) -> None:
    service.script.add(faults.Fault(kind="hang", count=1))
    with pytest.raises(cloud.DeadlineExceeded):
        await api.server(instance)

    assert (await api.server(instance)).name == "a"


async def test_a_rate_limit_says_when_to_come_back(
    service: server.Service, api: client.Client
) -> None:
    service.script.add(faults.Fault(kind="rate_limit", retry_after_s=17))

    with pytest.raises(cloud.RetryAfter) as caught:
        await api.servers()

    assert caught.value.seconds == 17.0


async def test_a_message_holds_the_clouds_words(
    service: server.Service, api: client.Client, instance: str
) -> None:
    service.script.add(faults.Fault(kind="error", status=500, code="oops", message="disk on fire"))

    with pytest.raises(cloud.Unavailable) as caught:
        await api.server(instance)

    assert "HTTP 500 oops: disk on fire (req-1)" in str(caught.value)


async def test_a_wrong_token_is_unauthenticated(url: str) -> None:
    async with client.open_client(settings(url, token="wrong")) as api:
        with pytest.raises(cloud.Unauthenticated):
            await api.servers()


async def test_a_cloud_that_is_not_there_is_unavailable(service: server.Service) -> None:
    async with server.serve(service) as url:
        pass

    async with client.open_client(settings(url)) as api:
        with pytest.raises(cloud.Unavailable):
            await api.servers()


async def test_a_wrong_base_path_is_no_absence(url: str, instance: str) -> None:
    async with client.open_client(settings(f"{url}/elsewhere")) as api:
        with pytest.raises(cloud.Unknown):
            await api.server(instance)


async def test_an_instance_that_is_not_there_is_not_found(api: client.Client) -> None:
    with pytest.raises(cloud.NotFound):
        await api.server("i-0")


@pytest.mark.parametrize(
    ("number", "page_size", "requests"), [(0, 50, 1), (50, 50, 1), (51, 50, 2), (230, 50, 5)]
)
async def test_a_listing_follows_all_pages_and_counts_them(
    service: server.Service, api: client.Client, number: int, page_size: int, requests: int
) -> None:
    names = [f"n{index}" for index in range(number)]
    service.world.put_all([world.GivenInstance(name=name) for name in names])
    service.change_settings(msgspec.structs.replace(service.settings, page_size=page_size))

    found, counted = await api.servers()

    assert [one.name for one in found] == names
    assert counted == requests == service.calls.counts["list_instances"]


async def test_a_fault_on_a_later_page_is_never_a_short_listing(
    service: server.Service, api: client.Client
) -> None:
    service.world.put_all([world.GivenInstance(name=f"n{index}") for index in range(5)])
    service.change_settings(msgspec.structs.replace(service.settings, page_size=2))
    service.script.add(faults.Fault(kind="error", skip=2))

    with pytest.raises(cloud.Unavailable):
        await api.servers()


@pytest.mark.parametrize(
    "fault",
    [body(instances=[]), body(instances=[], next_cursor="again")],
    ids=["no cursor field", "the same cursor for ever"],
)
async def test_a_listing_without_a_proper_end_is_refused(
    service: server.Service, api: client.Client, fault: faults.Fault
) -> None:
    service.script.add(fault)

    with pytest.raises(cloud.Unknown):
        await api.servers()


async def test_an_answer_about_another_instance_is_refused(
    service: server.Service, api: client.Client, instance: str
) -> None:
    service.script.add(body(id="i-other", name="a", state="running"))

    with pytest.raises(cloud.Unknown):
        await api.server(instance)


async def test_unknown_fields_and_words_are_tolerated(
    service: server.Service, api: client.Client, instance: str
) -> None:
    addresses = [{"kind": "carrier_pigeon", "value": "coo", "ring": 7}]
    service.script.add(
        body(id=instance, name="a", state="dreaming", addresses=addresses, price=3.5)
    )

    found = await api.server(instance)

    assert (found.state, found.addresses[0].kind) == ("dreaming", "carrier_pigeon")
