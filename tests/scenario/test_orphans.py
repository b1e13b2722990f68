"""`kube-ccm orphans`: load balancers without a Service are listed, and deleted only by name."""

from __future__ import annotations

import contextlib
import io
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from ccm.cli import orphans
from ccm.cloud import Context, RetryAfter, Service, default_load_balancer_name
from ccm.doctor import ExaminationError
from ccm.testing import builders
from providers import sim
from tests.scenario.harness import Environment

PATH = "/api/v1/namespaces/default/services"
BODY = {
    "metadata": {"name": "kept"},
    "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]},
}


@pytest_asyncio.fixture
async def owner(env: Environment) -> AsyncIterator[Service]:
    """A Service with a load balancer, beside one whose Service was lost."""
    service = msgspec.convert(await env.cluster.create(PATH, BODY), Service)
    async with sim.open_cloud(Context(config=Path(env.cloud_config).read_bytes())) as cloud:
        assert cloud.load_balancer is not None
        for each in (service, builders.service("lost")):
            with contextlib.suppress(RetryAfter):
                await cloud.load_balancer.ensure_load_balancer("kubernetes", each, ())
        yield service


LOST = default_load_balancer_name(builders.service("lost"))


async def told(env: Environment, *words: str) -> str:
    said = io.StringIO()
    given = [
        f"--kubeconfig={env.server.kubeconfig_path}",
        "--cloud-provider=sim",
        f"--cloud-config={env.cloud_config}",
    ]
    await orphans.show_or_delete(orphans.read([*given, *words]), said, environ={})
    return said.getvalue()


async def test_an_orphan_is_listed_and_deleted_only_by_its_name(
    env: Environment, owner: Service
) -> None:
    assert f"\n{LOST}  " in await told(env)
    assert (await told(env, "--cluster-name=other")).startswith("no orphans were found\n")
    for words, refusal in (
        ([f"--delete={default_load_balancer_name(owner)}"], "belongs to a Service"),
        (["--cluster-name=other", f"--delete={LOST}"], "is not a load balancer of this cluster"),
        (["--cloud-config=/nowhere"], "cannot be read"),
    ):
        with pytest.raises(ExaminationError, match=refusal):
            await told(env, *words)
    assert not env.calls("delete_balancer")

    assert await told(env, f"--delete={LOST}") == f"{LOST} deleted\n"
    assert len(env.calls("delete_balancer")) == 1
    assert (await told(env)).startswith("no orphans were found\n")


def test_an_invalid_command_line_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert orphans.run(["--cloud-provider=sim", "--no-such-flag"]) == 2
    assert "--no-such-flag" in capsys.readouterr().err
    out = io.StringIO()
    assert orphans.run(["--help"], out=out) == 0
    assert "--delete" in out.getvalue()
