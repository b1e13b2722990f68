"""The admission webhooks, from the flags to an answer over HTTPS."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ccm import cloud
from ccm.app import options
from ccm.app.options import names
from ccm.app.provider import Misconfigured
from ccm.app.serving import certificates, webhooks
from ccm.base.tasks import cancel_and_join, spawn
from ccm.sandbox import ports

GATE = "--feature-gates=CloudControllerManagerWebhook=true"
SIZE = cloud.ServiceAnnotation(
    name="acme.example/size", expects="a number", default=1, shown="1", help="Size.", parse=int
)
ACME = cloud.Cloud(
    name="acme", service_annotations=("acme.example/",), service_annotation_schema=(SIZE,)
)
URL_PATH = "/service-annotations"


def parsed(*words: str) -> options.Options:
    return options.parse(["--cloud-provider=sim", *words])


@pytest.mark.row("webhook-serve-04")
@pytest.mark.row("webhook-serve-05")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ()),
        ([GATE], ()),
        (["--webhooks=*"], ()),
        ([GATE, "--webhooks=*"], ("service-annotations",)),
        ([GATE, "--webhooks=service-annotations"], ("service-annotations",)),
        ([GATE, "--webhooks=-service-annotations,*"], ()),
        ([GATE, "--webhooks=*", "--webhook-secure-port=0"], ()),
    ],
    ids=["neither", "gate alone", "list alone", "all", "by name", "left out", "no port"],
)
def test_which_webhooks_are_served(words: list[str], expected: tuple[str, ...]) -> None:
    assert webhooks.enabled(parsed(*words)) == expected


def test_every_name_can_be_made() -> None:
    assert set(webhooks._MAKERS) == set(names.WEBHOOKS)


@asynccontextmanager
async def serving(folder: Path, *words: str, offered: cloud.Cloud = ACME) -> AsyncIterator[str]:
    """A server with a certificate of its own in a folder; its URL."""
    port = ports.pick_port()
    read = parsed(
        *(GATE, "--webhooks=*", "--webhook-bind-address=127.0.0.1"),
        *(f"--webhook-secure-port={port}", f"--webhook-cert-dir={folder}", *words),
    )
    task = spawn(webhooks.serve(read, lambda: offered), name="serve")
    try:
        while not task.done() and not answers(port):
            await asyncio.sleep(0.01)
        if task.done():
            task.result()
        yield f"https://127.0.0.1:{port}"
    finally:
        await cancel_and_join(task)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def asked(folder: Path, url: str, text: str, **spec: Any) -> dict[str, Any]:
    """The response about a new Service with this size."""
    service = {
        "metadata": {"name": "web", "annotations": {SIZE.name: text}},
        "spec": {"type": "LoadBalancer", **spec},
    }
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "kind": {"group": "", "version": "v1", "kind": "Service"},
            "operation": "CREATE",
            "object": service,
        },
    }
    trust = ssl.create_default_context(
        cafile=str(folder / f"{certificates.PAIR_NAMES[certificates.WEBHOOKS]}.crt")
    )
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession(url) as session,
        session.post(URL_PATH, data=json.dumps(review), headers=headers, ssl=trust) as response,
    ):
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = json.loads(await response.text())["response"]
        return answer


async def test_a_service_is_judged_by_the_providers_schema(tmp_path: Path) -> None:
    flag = "--load-balancer-classes=acme.example/lb"
    async with serving(tmp_path, flag) as url:
        good = await asked(tmp_path, url, "3")
        wrong = await asked(tmp_path, url, "three")
        claimed = await asked(tmp_path, url, "three", loadBalancerClass="acme.example/lb")
        foreign = await asked(tmp_path, url, "three", loadBalancerClass="other.example/lb")

    assert good["allowed"]
    assert foreign["allowed"]
    assert not claimed["allowed"]
    assert wrong["status"]["message"] == (
        "annotation acme.example/size: 'three' is not understood; expected a number"
    )


async def test_nothing_is_served_unless_it_is_asked_for() -> None:
    await webhooks.serve(parsed("--webhooks=*"), lambda: ACME)


async def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as url:
        port = url.rpartition(":")[2]
        with pytest.raises(Misconfigured, match=f"cannot listen on 127.0.0.1:{port}"):
            async with serving(tmp_path, f"--webhook-secure-port={port}"):
                pass


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--webhook-tls-cipher-suites=A"], "cipher suite 'A' is unknown"),
        (
            ["--webhook-tls-cert-file=/none.crt", "--webhook-tls-private-key-file=/none.key"],
            "none.crt",
        ),
    ],
    ids=["a suite", "a file"],
)
async def test_tls_settings_that_cannot_be_used(words: list[str], message: str) -> None:
    read = parsed(GATE, "--webhooks=*", "--webhook-bind-address=127.0.0.1", *words)

    with pytest.raises(Misconfigured, match=message):
        await webhooks.serve(read, lambda: ACME)
