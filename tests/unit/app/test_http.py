"""The two HTTPS servers, from the flags to an answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
from multidict import MultiDict
from structlog.testing import capture_logs

from ccm import cloud
from ccm.app import health, http, options, reload
from ccm.app.health import DaemonState
from ccm.app.http import ServerContext, _transport, serving
from ccm.app.options import Options, controllers
from ccm.app.provider import Misconfigured
from ccm.cloud.errors import Unauthenticated
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import StaticCredentials, TlsSettings, bearer
from ccm.kube.transport import Transport
from ccm.kubermatic import names as kubermatic
from ccm.runtime.object_status import ExplainResponse
from ccm.sandbox import process
from ccm.sandbox.realserver import write_kubeconfig
from ccm.serving import admission
from ccm.testing import builders
from tests import pki
from tests.unit.kube.proxy import connect, serve
from tests.waiting import DEADLINE_S

NOWHERE = "http://127.0.0.1:1"


def chosen(*flags: str) -> Options:
    return options.parse(["--cloud-provider=sim", "--bind-address=127.0.0.1", *flags])


def context(transport: Transport, *flags: str) -> ServerContext:
    return ServerContext(
        options=chosen(*flags), vitals=DaemonState(), transport=transport, environ={}
    )


@contextlib.asynccontextmanager
async def running(*flags: str) -> AsyncIterator[tuple[asyncio.Task[None], str]]:
    """Run a server with these flags without a cluster; yield its task and its URL."""
    port = process.pick_port()
    config = ClusterConfig(server=NOWHERE, credentials=StaticCredentials(), tls=TlsSettings())
    async with (
        Transport(config) as transport,
        serving(context(transport, f"--secure-port={port}", *flags)) as task,
    ):
        yield task, f"https://127.0.0.1:{port}"


async def get(url: str, *, trusts: Path | None = None, **headers: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=pki.client_context(trusts)) as response,
    ):
        return response.status, await response.text()


@pytest.mark.row("serving-matrix-05", "serving-tls-01")
async def test_only_always_allowed_paths_are_served_outside_a_cluster() -> None:
    async with running() as (_, url):
        found = {
            "/healthz": (await get(f"{url}/healthz"))[0],
            "/metrics": (await get(f"{url}/metrics"))[0],
            "with a token": (await get(f"{url}/healthz", Authorization="Bearer x"))[0],
        }

    assert found == {"/healthz": 200, "/metrics": 403, "with a token": 401}


@pytest.mark.row("serving-start-02")
async def test_secure_port_zero_disables_the_server() -> None:
    async with running("--secure-port=0", "--client-ca-file=/does/not/exist") as (task, _):
        await asyncio.sleep(0.05)
        assert not task.done()


@pytest.mark.row("serving-start-01")
async def test_taken_port_is_a_configuration_error_at_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        opening = running(f"--secure-port={taken.getsockname()[1]}")

        with pytest.raises(Misconfigured, match="Address already in use"):
            await opening.__aenter__()


@pytest.mark.row("serving-start-01", "serving-tls-04")
@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--tls-cipher-suites=X", "'X' is unknown"),
        ("--tls-curve-preferences=1", "group 1 is unknown"),
        ("--client-ca-file=/none", "--client-ca-file=/none cannot be used: No such file or"),
        ("--requestheader-client-ca-file=/none", "=/none cannot be used: No such file or"),
        ("--authorization-kubeconfig=/none", "--authorization-kubeconfig=/none: no such file"),
        ("--tls-sni-cert-key=/none,/none", "--tls-sni-cert-key: /none cannot be read: No such"),
        ("--tls-cert-file=/none --tls-private-key-file=/x", "--tls-cert-file=/none cannot be read"),
        (
            f"--tls-cert-file={__file__} --tls-private-key-file=/none",
            "--tls-private-key-file=/none cannot be read: No such file or directory$",
        ),
        (
            f"--tls-cert-file={__file__} --tls-private-key-file={__file__}",
            "certificate cannot be used: not valid PEM$",
        ),
        (
            "--cert-dir=/proc/none",
            "/none: a new certificate cannot be stored: No such file or directory$",
        ),
    ],
)
async def test_invalid_serving_flags_end_the_server_with_a_message(flag: str, told: str) -> None:
    async with running(*flag.split()) as (task, _):
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({task})
        with pytest.raises(Misconfigured, match=told) as refused:
            task.result()
    assert "Errno" not in str(refused.value)


@pytest.mark.row("serving-tls-02")
async def test_cert_dir_gets_a_self_signed_pair(tmp_path: Path) -> None:
    async with running(f"--cert-dir={tmp_path}") as (_, url):
        await get(f"{url}/healthz")

    made = {file.name for file in tmp_path.iterdir()}
    assert made == {"cloud-controller-manager.crt", "cloud-controller-manager.key"}


async def test_authentication_kubeconfig_is_reloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "CHECK_S", 0.01)
    file = tmp_path / "kubeconfig"
    async with serve() as api, contextlib.AsyncExitStack() as stack:
        write_kubeconfig(file, url=api.url, token="first-token")
        flag = f"--authentication-kubeconfig={file}"
        transport = await _transport(
            stack, "authentication-kubeconfig", context(connect(api.url), flag)
        )
        assert transport is not None
        write_kubeconfig(file, url=api.url, token="another-token")
        async with asyncio.timeout(DEADLINE_S):
            while await transport.config.credentials.current() != bearer("another-token"):
                await asyncio.sleep(0.01)


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
        ([GATE, "--webhooks=kubermatic-machines"], ("kubermatic-machines",)),
    ],
    ids=["neither", "gate alone", "list alone", "all", "by name", "left out", "no port", "off"],
)
def test_webhooks_need_the_feature_gate_the_list_and_a_port(
    words: list[str], expected: tuple[str, ...]
) -> None:
    assert http.enabled_webhooks(parsed(*words)) == expected


async def test_kubermatic_webhook_uses_the_constraints_of_the_flag() -> None:
    make = http._FACTORIES[controllers.KUBERMATIC_MACHINES]
    flag = "--kubernetes-version-constraints=>=1.36.0"
    kind = admission.GroupVersionKind(
        group=kubermatic.GROUP, version=kubermatic.VERSION, kind="Machine"
    )
    value = {"cloudProvider": "aws", "operatingSystem": "ubuntu"}
    body = {"spec": {"providerSpec": {"value": value}, "versions": {"kubelet": "1.35.1"}}}
    answer = await make(parsed(flag), lambda: ACME)(
        admission.AdmissionRequest(
            uid="u",
            kind=kind,
            operation=admission.CREATE,
            object=msgspec.Raw(msgspec.json.encode({"metadata": {"name": "m"}, **body})),
        )
    )

    assert not answer.allowed
    assert flag in answer.message


async def asked(text: str, **spec: Any) -> admission.AdmissionResponse:
    """Return the admission response for a new Service with this size."""
    judge = http._FACTORIES[controllers.SERVICE_ANNOTATIONS]
    service = builders.service(annotations={SIZE.name: text}, **spec)
    return await judge(parsed("--load-balancer-classes=acme.example/lb"), lambda: ACME)(
        admission.AdmissionRequest(
            uid="u",
            kind=admission.GroupVersionKind(version="v1", kind="Service"),
            operation=admission.CREATE,
            object=msgspec.Raw(msgspec.json.encode(service)),
        )
    )


async def test_service_webhook_validates_with_the_schema_of_the_provider() -> None:
    wrong = await asked("three")

    assert (await asked("3")).allowed
    assert (await asked("three", load_balancer_class="other.example/lb")).allowed
    assert not (await asked("three", load_balancer_class="acme.example/lb")).allowed
    assert (wrong.allowed, wrong.message) == (
        False,
        "annotation acme.example/size: 'three' is invalid; expected a number",
    )


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], None),
        ([GATE, "--webhooks=-service-annotations"], None),
        (["--webhooks=*"], f"--webhooks=* has no effect: {GATE} is missing"),
        (
            [GATE, "--webhooks=*", "--webhook-secure-port=0"],
            "--webhooks=* has no effect: --webhook-",
        ),
    ],
    ids=["none", "left out", "no gate", "no port"],
)
async def test_requested_webhooks_without_effect_cause_a_warning(
    words: list[str], why: str | None
) -> None:
    with capture_logs() as lines:
        await http.serve_webhooks(parsed(*words), lambda: ACME)

    told = [line for line in lines if line["log_level"] == "warning"]
    assert [line["reason"][: len(why or "")] for line in told] == ([why] if why else [])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--webhook-tls-cipher-suites=A"], "cipher suite 'A' is unknown"),
        (["--webhook-tls-cert-file=/none.crt"], "none.crt"),
    ],
    ids=["a suite", "a file"],
)
async def test_webhook_server_refuses_unusable_tls_settings(words: list[str], message: str) -> None:
    read = parsed(GATE, "--webhooks=*", "--webhook-bind-address=127.0.0.1", *words)

    with pytest.raises(Misconfigured, match=message):
        await http.serve_webhooks(read, lambda: ACME)


async def asked_of_explain(vitals: DaemonState, **query: str) -> Any:
    chosen = options.parse(["--cloud-provider=sim"])
    request: Any = SimpleNamespace(query=MultiDict(query))
    return await health.explain_page(chosen, vitals)(request)


@pytest.mark.parametrize(
    "query", [{}, {"kind": "node"}, {"name": "x"}, {"kind": "pod", "name": "x"}]
)
async def test_explain_requires_kind_and_name(query: dict[str, str]) -> None:
    answer = await asked_of_explain(DaemonState(), **query)

    assert answer.status == 400
    assert answer.body.startswith(b"kind and name are required: /explain?kind=node&name=NAME")


async def test_explain_on_a_standby_tells_why_the_provider_is_not_open() -> None:
    vitals = DaemonState()
    vitals.not_opened(Unauthenticated("401"))

    answer = await asked_of_explain(vitals, kind="service", name="default/web")

    found = msgspec.json.decode(answer.body, type=ExplainResponse)
    assert found == ExplainResponse(
        kind="service",
        name="default/web",
        provider="sim",
        opening="the provider cannot be opened: 401",
    )
