"""Services on the built-in API server and on the real one: the same requests, the same answers."""

from __future__ import annotations

import asyncio
import ipaddress

import aiohttp
import pytest

from ccm.sandbox import realserver
from ccm.sandbox.apiserver import server, store
from tests import servers
from tests.kubectl import service_requests

pytestmark = [pytest.mark.envtest, pytest.mark.timeout(180)]

RANGES = {"one": "10.96.0.0/16", "two": "10.96.0.0/16,fd00:10:96::/112"}

Answers = dict[str, list[str]]


@pytest.fixture(scope="module", params=RANGES)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Answers, Answers]:
    """The answers of the built-in server and of the real one, with so many IP families."""
    ranges = RANGES[request.param]
    real = realserver.RealServer(
        assets=servers.require_assets(),
        data_dir=tmp_path_factory.mktemp("real"),
        extra_args=[f"--service-cluster-ip-range={ranges}"],
    )
    return asyncio.run(_ask_builtin(ranges)), asyncio.run(_ask_real(real))


async def _ask_builtin(ranges: str) -> Answers:
    networks = [ipaddress.ip_network(text) for text in ranges.split(",")]
    async with (
        server.serve(store.Store(), cluster_ips=networks) as url,
        aiohttp.ClientSession(url) as session,
    ):
        return await service_requests.answers(session)


async def _ask_real(real: realserver.RealServer) -> Answers:
    try:
        await real.start()
        async with servers.connect(real) as session:
            return await service_requests.answers(session)
    finally:
        await real.kill()


@pytest.mark.parametrize("case", service_requests.CASES)
def test_both_servers_answer_alike(both: tuple[Answers, Answers], case: str) -> None:
    builtin, real = both

    assert len(real[case]) == len(service_requests.CASES[case])
    assert builtin[case] == real[case]
