"""The admission webhooks, from the flags to an answer over HTTPS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from ccm import cloud
from ccm.app import http, options
from ccm.app.options import names
from ccm.app.provider import Misconfigured
from ccm.base.tasks import cancel_and_join, spawn
from ccm.sandbox import ports
from ccm.serving import admission
from ccm.testing import builders

GATE = "--feature-gates=CloudControllerManagerWebhook=true"
SIZE = cloud.ServiceAnnotation(
    name="acme.example/size", expects="a number", default=1, shown="1", help="Size.", parse=int
)
ACME = cloud.Cloud(
    name="acme", service_annotations=("acme.example/",), service_annotation_schema=(SIZE,)
)


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
    assert http.enabled(parsed(*words)) == expected


def test_every_name_can_be_made() -> None:
    assert set(http._MAKERS) == set(names.WEBHOOKS)


@asynccontextmanager
async def serving(folder: Path, *words: str) -> AsyncIterator[int]:
    """A server with a certificate of its own in a folder; its port."""
    port = ports.pick_port()
    read = parsed(
        *(GATE, "--webhooks=*", "--webhook-bind-address=127.0.0.1"),
        *(f"--webhook-secure-port={port}", f"--webhook-cert-dir={folder}", *words),
    )
    task = spawn(http.serve(read, lambda: ACME), name="serve")
    try:
        while not task.done() and not answers(port):
            await asyncio.sleep(0.01)
        if task.done():
            task.result()
        yield port
    finally:
        await cancel_and_join(task)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def asked(text: str, **spec: Any) -> admission.Answer:
    """The answer about a new Service with this size."""
    judge = http._MAKERS[names.SERVICE_ANNOTATIONS]
    service = builders.service(annotations={SIZE.name: text}, **spec)
    return await judge(parsed("--load-balancer-classes=acme.example/lb"), lambda: ACME)(
        admission.Request(
            uid="u",
            kind=admission.GroupVersionKind(version="v1", kind="Service"),
            operation=admission.CREATE,
            object=msgspec.Raw(msgspec.json.encode(service)),
        )
    )


async def test_a_service_is_judged_by_the_providers_schema() -> None:
    wrong = await asked("three")

    assert (await asked("3")).allowed
    assert (await asked("three", load_balancer_class="other.example/lb")).allowed
    assert not (await asked("three", load_balancer_class="acme.example/lb")).allowed
    assert (wrong.allowed, wrong.message) == (
        False,
        "annotation acme.example/size: 'three' is not understood; expected a number",
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], None),
        ([GATE, "--webhooks=-service-annotations"], None),
        (["--webhooks=*"], "--webhooks=* has no effect: it needs --feature-gates="),
        (
            [GATE, "--webhooks=*", "--webhook-secure-port=0"],
            "--webhooks=* has no effect: --webhook-",
        ),
    ],
    ids=["none", "left out", "no gate", "no port"],
)
async def test_what_is_asked_for_and_not_served_is_warned_of(
    words: list[str], why: str | None
) -> None:
    with capture_logs() as lines:
        await http.serve(parsed(*words), lambda: ACME)

    told = [line for line in lines if line["log_level"] == "warning"]
    assert [line["reason"][: len(why or "")] for line in told] == ([why] if why else [])


async def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as port:
        with pytest.raises(Misconfigured, match=f"cannot listen on 127.0.0.1:{port}"):
            async with serving(tmp_path, f"--webhook-secure-port={port}"):
                pass


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--webhook-tls-cipher-suites=A"], "cipher suite 'A' is unknown"),
        (["--webhook-tls-cert-file=/none.crt"], "none.crt"),
    ],
    ids=["a suite", "a file"],
)
async def test_tls_settings_that_cannot_be_used(words: list[str], message: str) -> None:
    read = parsed(GATE, "--webhooks=*", "--webhook-bind-address=127.0.0.1", *words)

    with pytest.raises(Misconfigured, match=message):
        await http.serve(read, lambda: ACME)
