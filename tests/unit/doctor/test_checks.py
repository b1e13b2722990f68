"""Checks of the doctor, their order, and the deletions that a start would cause."""

from __future__ import annotations

import sqlite3
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest
import pytest_asyncio

from ccm import cloud
from ccm.app import options
from ccm.app.options import Options
from ccm.base import redact
from ccm.base.flags import PROVIDERS
from ccm.cloud import InstanceListing, InstanceMetadata, InstanceRecord, Power, registry
from ccm.doctor import (
    ExaminationError,
    cluster,
    daemons,
    examination,
    nodes,
    provider,
    reach,
    start_forecast,
)
from ccm.doctor import case as words
from ccm.doctor.case import Case, CheckFinding, CheckResult, Severity, items, ok
from ccm.doctor.examination import CHECKS, DoctorCheck
from ccm.kube import errors
from ccm.kube.client import Client
from ccm.planning.changes import (
    BALANCER,
    ROUTE,
    ChangedObject,
    ChangeKind,
    Forecast,
    PlannedChange,
    RecordedEvent,
)
from ccm.sandbox import realserver
from ccm.testing import builders
from tests.contract.memory import MemoryApi, MemoryProvider
from tests.manifests import shipped

ABSENT = errors.NotFound(status=404, reason="NotFound", message="no")


class Answering:
    """Client that answers GETs from a table of path suffixes; other objects do not exist."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers

    async def raw(self, method: str, path: str, **_how: Any) -> bytes:
        assert method == "GET"
        for end, answer in self.answers.items():
            if path.endswith(end):
                return msgspec.json.encode(answer)
        raise ABSENT

    def resource(self, kind: Any) -> Any:
        async def get(name: str, *, namespace: str) -> Any:
            found = await self.raw("GET", f"/{namespace}/{kind.plural}/{name}")
            return msgspec.json.decode(found, type=kind.type)

        return SimpleNamespace(get=get)


def case(answers: Mapping[str, Any], *flags: str) -> Case:
    made = Case(options=options.parse(["--cloud-provider=sim", *flags]), environ={})
    made.client = Answering(answers)  # type: ignore[assignment]
    return made


# --- findings of the provider -------------------------------------------------------------------

GOOD = cloud.CloudFinding(message="router: r1")
FULL = cloud.CloudFinding(message="quota: 9 of 9 servers", advice="ask for more")
LOST = cloud.CloudFinding(message="subnet: s1 is missing", advice="set subnet", is_failure=True)


@pytest.mark.parametrize(
    ("found", "severity", "lines"),
    [
        (None, Severity.OK, []),
        ([GOOD], Severity.OK, ["router: r1"]),
        ([GOOD, FULL], Severity.WARN, ["quota: 9 of 9 servers", "router: r1", "ask for more"]),
        (
            [FULL, GOOD, LOST, LOST],
            Severity.FAIL,
            ["subnet: s1 is missing", "quota: 9 of 9 servers", "router: r1", "set subnet"],
        ),
        (cloud.Unavailable("no answer"), Severity.FAIL, ["the cloud does not answer: no answer"]),
    ],
)
async def test_findings_of_the_provider_are_part_of_the_check_of_the_cloud(
    found: list[cloud.CloudFinding] | cloud.CloudError | None, severity: Severity, lines: list[str]
) -> None:
    async def examine() -> AsyncIterator[cloud.CloudFinding]:
        if isinstance(found, cloud.CloudError):
            raise found
        for finding in found or ():
            yield finding

    examined = case({})
    checks = None if found is None else examine
    examined.cloud = cloud.Cloud(name="sim", inventory=Listing(), examine=checks)

    result = await provider.cloud(examined)

    said = [result.message, *result.details, *result.advice]
    assert result.severity is severity
    assert [line for line in lines if line not in said] == []
    assert lines[:1] == said[:1] or severity is Severity.OK


class Listing:
    """A cloud without instances."""

    async def list_instances(self) -> InstanceListing:
        return InstanceListing(instances=(), requests=1)


# --- webhooks -----------------------------------------------------------------------------------

SERVED = ("--feature-gates=CloudControllerManagerWebhook=true", "--webhooks=service-annotations")
OTHER = {"webhooks": [{"name": "x", "clientConfig": {"url": "https://h/validate"}}]}


def registration(policy: str = "Ignore", **client: Any) -> dict[str, Any]:
    """Return the shipped registration, optionally with another policy or URL."""
    found = shipped.only(
        shipped.objects(shipped.MANIFESTS / "webhook.yaml"), "ValidatingWebhookConfiguration"
    )
    (hook,) = found["webhooks"]
    hook["failurePolicy"] = policy
    hook["clientConfig"] = client or hook["clientConfig"]
    return found


URL = registration("Fail", url="https://daemon:10260/service-annotations")


@pytest.mark.parametrize(
    ("registered", "ready", "flags", "verdict", "found"),
    [
        ([registration(), OTHER], [True], SERVED, Severity.OK, "1 webhook registered"),
        ([registration()], [False, None], SERVED, Severity.OK, "1 webhook registered"),
        ([OTHER], [], (), Severity.OK, "no webhook is served"),
        (None, [], (), Severity.OK, "no webhook is served"),
        (
            [registration()],
            [],
            SERVED,
            Severity.WARN,
            "no ready replica behind Service kube-system",
        ),
        ([registration()], [False], SERVED, Severity.WARN, "no ready replica"),
        ([registration("Fail")], [False], SERVED, Severity.FAIL, "no ready replica"),
        (
            [registration()],
            [True],
            SERVED[1:],
            Severity.WARN,
            "service-annotations: registered, but",
        ),
        ([URL], [], (), Severity.FAIL, "service-annotations: registered, but not served"),
        ([OTHER], [], SERVED, Severity.WARN, "service-annotations: served, but in no webhook"),
    ],
)
async def test_webhook_registrations_are_compared_with_served_webhooks(
    registered: Any, ready: list[Any], flags: tuple[str, ...], verdict: Severity, found: str
) -> None:
    answers: dict[str, Any] = {
        "/namespaces/kube-system/endpointslices": {
            "items": [
                {"endpoints": [{"conditions": {"ready": one}} for one in ready]},
                {"endpoints": None},
            ]
        }
    }
    if registered is not None:
        answers["/validatingwebhookconfigurations"] = {"items": registered}

    told = await cluster.webhooks(case(answers, *flags))

    assert (told.severity, told.message[: len(found)]) == (verdict, found)
    assert told.advice or verdict is Severity.OK


@pytest.mark.parametrize(
    ("flags", "is_ready", "verdict", "found"),
    [
        ((), True, Severity.FAIL, "kubermatic-machines: registered, but not served"),
        (("--webhooks=kubermatic-machines",), True, Severity.OK, "1 webhook registered"),
        (("--webhooks=kubermatic-machines",), False, Severity.FAIL, "no ready replica behind"),
    ],
)
async def test_mutating_webhook_is_found(
    flags: tuple[str, ...], is_ready: bool, verdict: Severity, found: str
) -> None:
    registered = shipped.only(
        shipped.objects(shipped.KUBERMATIC_WEBHOOK / "webhook.yaml"), "MutatingWebhookConfiguration"
    )
    endpoints = [{"conditions": {"ready": is_ready}}]
    answers = {
        "/mutatingwebhookconfigurations": {"items": [registered]},
        "/namespaces/kube-system/endpointslices": {"items": [{"endpoints": endpoints}]},
    }

    told = await cluster.webhooks(case(answers, SERVED[0], *flags))

    assert (told.severity, told.message[: len(found)]) == (verdict, found)


async def test_unregistered_webhook_of_machines_names_its_component() -> None:
    told = await cluster.webhooks(case({}, SERVED[0], "--webhooks=kubermatic-machines"))

    assert told.severity is Severity.WARN
    assert "components/kubermatic-webhook" in told.advice[0]


# --- blocked deletions --------------------------------------------------------------------------

HELD = {
    "count": 7,
    "objects": [
        {"name": "n1", "reason": "mass_denial", "since": "2026-01-01T00:00:00Z"},
        {"name": "web", "namespace": "shop", "reason": "limit", "since": "2026-01-01T00:00:00Z"},
    ],
}
KEY = "cloud-controller-manager.Node.held"


@pytest.mark.parametrize(
    ("data", "annotations", "verdict", "found", "details"),
    [
        (None, {}, Severity.OK, "no deletion is blocked", ()),
        ({"other.Node.held": "{"}, {}, Severity.OK, "no deletion is blocked", ()),
        (
            {KEY: msgspec.json.encode(HELD).decode()},
            {},
            Severity.WARN,
            "blocked: 7 Nodes",
            (
                "Node n1: mass_denial, since 2026-01-01T00:00:00Z",
                "Node shop/web: limit, since 2026-01-01T00:00:00Z",
                "Node: and 5 more",
            ),
        ),
        ({KEY: "{"}, {}, Severity.FAIL, "ConfigMap kube-system/kube-ccm-deletions: ", ()),
        ({}, {"kube-ccm/allow-deletion": "true"}, Severity.WARN, "ConfigMap kube-system", ()),
    ],
    ids=["no-record", "of-another", "held", "garbled", "allowed"],
)
async def test_blocked_deletions_are_reported(
    data: Any, annotations: Any, verdict: Severity, found: str, details: tuple[str, ...]
) -> None:
    record = {"metadata": {"annotations": annotations}, "data": data}
    answers = {} if data is None else {"/configmaps/kube-ccm-deletions": record}

    told = await cluster.report_blocked_deletions(case(answers))

    assert (told.severity, told.message[: len(found)], told.details) == (verdict, found, details)


# --- storage ------------------------------------------------------------------------------------

ONE = "instances: [{sqlite: {path: HERE/q/x.db}}]\n"
SECRETS = (
    "secrets: {encrypted: {key_files: [HERE/new, HERE/old], "
    "storage: {sqlite: {path: HERE/v/s/x.db}}}}\n"
)


async def stored(folder: Path, text: str, uid: str = "u-1") -> CheckFinding:
    file = folder / "persistence.yaml"
    file.write_text(text.replace("HERE", str(folder)))
    lease = {"metadata": {"name": "l"}, "spec": {"leaseTransitions": 4}}
    answers = {
        "/namespaces/kube-system": {"metadata": {"uid": uid}},
        "/leases/cloud-controller-manager": lease,
    }
    flags = [f"--persistence-config={file}"] if text else []
    return await cluster.persistence(case(answers, *flags))


async def test_storage_check_reports_owner_latency_and_faults(tmp_path: Path) -> None:
    found = await stored(tmp_path, ONE)

    assert (found.severity, found.message) == (
        Severity.OK,
        "storage belongs to this cluster and is writable",
    )
    (line,) = found.details
    assert line.startswith("sqlite-")
    assert "up, " in line
    assert "up, 0.0 ms" not in line
    with closing(sqlite3.connect(tmp_path / "q" / "x.db")) as db:
        assert db.execute("SELECT kind FROM objects").fetchall() == [("Probe",)]
    foreign = await stored(tmp_path, ONE, uid="u-2")
    assert foreign.severity is Severity.FAIL
    assert "belongs to the cluster u-1, not to u-2" in foreign.message
    assert (await stored(tmp_path, "instances: []")).severity is Severity.FAIL
    assert (await stored(tmp_path, "")).severity is Severity.OK


async def test_storage_check_uses_the_epoch_in_storage(tmp_path: Path) -> None:
    """It is higher than the count of a recreated Lease; a higher one would stop the daemon."""
    await stored(tmp_path, ONE)
    with closing(sqlite3.connect(tmp_path / "q" / "x.db")) as db, db:
        db.execute("UPDATE instance SET epoch = 9")

    assert (await stored(tmp_path, ONE)).severity is Severity.OK
    with closing(sqlite3.connect(tmp_path / "q" / "x.db")) as db:
        assert db.execute("SELECT epoch FROM instance").fetchone() == (9,)


@pytest.mark.parametrize(
    ("folder", "verdict", "end"),
    [("v", Severity.OK, ": up, for secrets"), ("new", Severity.WARN, ": down, for secrets")],
)
async def test_secret_storage_is_checked(
    folder: str, verdict: Severity, end: str, tmp_path: Path
) -> None:
    for name in ("new", "old"):
        (tmp_path / name).write_bytes(name[:1].encode() * 32)
        (tmp_path / name).chmod(0o400)

    found = await stored(tmp_path, ONE + SECRETS.replace("HERE/v/", f"HERE/{folder}/"))

    assert found.severity is verdict
    assert found.details[-1].endswith(end)
    assert redact.mask_text(found.details[-1]) == found.details[-1]


# --- the Deployment and its Pods ----------------------------------------------------------------

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
LATELY, YESTERDAY = "2026-11-23T11:30:00Z", "2026-11-22T11:30:00Z"
UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}


def status(**given: Any) -> dict[str, Any]:
    return {"phase": "Running", "containerStatuses": [{"name": "main", **given}]}


def ended(reason: str, code: int, at: str = LATELY) -> dict[str, Any]:
    return {"terminated": {"reason": reason, "exitCode": code, "finishedAt": at}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


RESTARTED = "2 restarts, the last with exit code 137 (OOMKilled)"


@pytest.mark.parametrize(
    ("given", "troubles"),
    [
        (status(ready=True), []),
        (status(state=waiting("ImagePullBackOff", "no x")), [("ImagePullBackOff", "no x")]),
        (
            status(state=waiting("CrashLoopBackOff"), lastState=ended("Error", 1)),
            [("CrashLoopBackOff", "exit code 1")],
        ),
        (status(ready=False), [("NotReady", "running, but not ready")]),
        (
            status(ready=True, restartCount=2, lastState=ended("OOMKilled", 137)),
            [("OOMKilled", RESTARTED)],
        ),
        (status(ready=True, restartCount=2, lastState=ended("Error", 1, YESTERDAY)), []),
        (status(ready=True, restartCount=2, lastState=ended("Error", 1, "odd")), []),
        ({"phase": "Pending", "conditions": [UNPLACED]}, [("Unschedulable", "full")]),
        ({"phase": "Failed", "reason": "Evicted", "message": "m"}, [("Evicted", "m")]),
        ({"phase": "Pending"}, []),
    ],
)
def test_failing_pod_is_reported_with_its_reason(
    given: dict[str, Any], troubles: list[tuple[str, str]]
) -> None:
    pod = {"metadata": {"name": "p"}, "status": given}
    going = {**pod, "metadata": {"name": "p", "deletionTimestamp": LATELY}}

    assert list(daemons.troubles_of(pod, NOW)) == troubles
    assert list(daemons.troubles_of(going, NOW)) == []


def deployed(volumes: Any = (), **given: Any) -> dict[str, Any]:
    """Return a Deployment with a sidecar before the daemon's container."""
    flags = ["--cloud-provider=x", "--cloud-config=/etc/ccm/c.yaml"]
    containers = [{"name": "proxy"}, {"name": "main", "args": flags, **given}]
    spec = {"template": {"spec": {"containers": containers, "volumes": list(volumes)}}}
    return {"metadata": {"name": "d", "namespace": "kube-system"}, "spec": spec}


CONFIG = {"name": "config", "mountPath": "/etc/ccm"}
FILE = {"name": "config", "mountPath": "/etc/ccm/c.yaml", "subPath": "cloud"}
WHOLE = {"name": "config", "mountPath": "/etc/ccm/c.yaml"}
ENV = [
    {"name": "A", "value": "1"},
    {"name": "T", "valueFrom": {"secretKeyRef": {"name": "t", "key": "token"}}},
]
ENV_FROM = [{"secretRef": {"name": "all"}}, {"secretRef": {"name": "may", "optional": True}}]


@pytest.mark.parametrize(
    ("mount", "secret", "lacks"),
    [
        (CONFIG, {"secretName": "s"}, "the Secret s (for /etc/ccm)"),
        (CONFIG, {"secretName": "there"}, "the key c.yaml in the Secret there (it has k)"),
        (CONFIG, {"secretName": "there", "items": [{"key": "k", "path": "c.yaml"}]}, ""),
        (FILE, {"secretName": "there"}, "the key cloud in the Secret there (it has k)"),
        (WHOLE, {"secretName": "there"}, ""),
        (CONFIG, {"secretName": "s", "optional": True}, ""),
        (CONFIG, None, ""),
        ({"name": "config", "mountPath": "/certs"}, {"secretName": "s"}, None),
    ],
)
async def test_missing_secrets_of_the_deployment_are_reported(
    mount: Any, secret: Any, lacks: str | None
) -> None:
    volume = {"name": "config", **({"secret": secret} if secret else {})}
    answers = {
        "/deployments": {"items": [{"metadata": {}}, deployed([volume], volumeMounts=[mount])]},
        "/secrets/there": {"data": {"k": "eA=="}},
    }

    found = await daemons.secrets(case(answers))

    assert found.severity is (Severity.OK if lacks == "" else Severity.FAIL)
    end = "is on no volume of kube-system/d" if lacks is None else lacks
    assert found.message.endswith(end)


async def advice_of(flags: Sequence[str], secrets: Mapping[str, Any], **container: Any) -> str:
    volume = {"name": "config", "secret": {"secretName": "s"}}
    answers = {"/deployments": {"items": [deployed([volume], **container)]}}
    answers |= {f"/secrets/{name}": {"data": data} for name, data in secrets.items()}
    (advice,) = (await daemons.secrets(case(answers, *flags))).advice
    return advice.removeprefix("kubectl -n kube-system create secret generic ")


async def test_the_advice_for_a_missing_secret_names_the_file_of_the_provider() -> None:
    given = ["--cloud-config=/etc/my files/cloud.conf"]
    apply = " --dry-run=client -o yaml | kubectl apply --server-side --field-manager=kube-ccm -f -"
    config: Any = {"volumeMounts": [CONFIG]}

    assert await advice_of([], {}, **config) == "s --from-file=c.yaml=FILE"
    found = await advice_of(given, {}, **config)
    assert found == "s --from-file=c.yaml='/etc/my files/cloud.conf'"
    # kubectl creates no Secret that exists.
    assert await advice_of([], {"s": {"k": "eA=="}}, **config) == (
        f"s --from-file=c.yaml=FILE{apply}"
    )
    present = {"s": {"c.yaml": "eA=="}}
    found = await advice_of(given, present, env=ENV, **config)
    assert found == "t --from-literal=token=VALUE"
    assert await advice_of(given, present, envFrom=ENV_FROM, **config) == (
        "all --from-literal=KEY=VALUE"
    )


def test_secrets_of_environment_variables_are_needed_too() -> None:
    body = deployed(env=ENV, envFrom=ENV_FROM)
    container = body["spec"]["template"]["spec"]["containers"][1]
    needed = daemons.needed_secrets(daemons.Deployment(body, container))

    assert [(secret, key) for secret, key, _ in needed] == [("all", ""), ("t", "token")]


# --- managers among Pods ------------------------------------------------------------------------


def pod(*words: str, image: str = "registry/app", phase: str = "Running", **spec: Any) -> Any:
    container = {"image": image, "command": list(words[:1]), "args": list(words[1:])}
    spec = {"containers": [container], **spec}
    return {"metadata": {"name": "p"}, "spec": spec, "status": {"phase": phase}}


CCM = "cloud-controller-manager"


@pytest.mark.parametrize(
    ("given", "manager"),
    [
        (pod(f"/bin/acme-{CCM}", "--cloud-provider=acme", image="x"), ("p", "acme")),
        (pod("/entry", "--cloud-provider", "acme", "--v=2", image="x"), ("p", "acme")),
        (pod("/entry", image=f"registry/{CCM}:v1"), ("p", "")),
        (pod(f"/bin/acme-{CCM}", "--cloud-provider", image="x"), ("p", "")),
        (pod(CCM, "--cloud-provider=x", hostNetwork=True, nodeName="n7"), ("n7", "x")),
        (pod("kube-apiserver", "--cloud-provider=external"), None),
        (pod("/bin/app", "--verbose"), None),
        (pod(), None),
        (pod(CCM, "--cloud-provider=x", phase="Succeeded"), None),
    ],
)
def test_cloud_controller_manager_pod_is_recognized_by_name_or_flag(
    given: Any, manager: tuple[str, str] | None
) -> None:
    found = [(one.host, one.provider) for one in daemons.in_pods([given])]

    assert found == ([manager] if manager else [])


# --- nodes and instances ------------------------------------------------------------------------


def listing(**ids: str) -> InstanceListing:
    return InstanceListing(
        instances=[
            InstanceRecord(
                name=name, power=Power.RUNNING, metadata=InstanceMetadata(provider_id=provider_id)
            )
            for name, provider_id in ids.items()
        ]
    )


def test_instances_are_matched_by_provider_id_before_name() -> None:
    known = [
        builders.node("a"),
        builders.node("b", provider_id="x://9"),
        builders.node("renamed", provider_id="x://2"),
        builders.node("stranger"),
    ]

    unlisted, lonely = nodes.match_instances(listing(a="x://1", b="x://2", c="x://3"), known)

    assert [node.name for node in unlisted] == ["b", "stranger"]
    assert list(lonely) == ["c"]
    assert nodes.match_instances(None, known) == (known, ())


def test_similar_instance_names_are_suggested() -> None:
    lost = ["web-1.example.com", "DB-1", "zebra"]

    assert list(nodes.guesses(lost, ["web-1", "db1", "other"])) == [
        "web-1.example.com may be the instance web-1",
        "DB-1 may be the instance db1",
    ]


# --- connection to the API server ---------------------------------------------------------------


def unreachable(kind: errors.FailureKind, *causes: Exception) -> errors.Unreachable:
    top: Exception = errors.Unreachable("GET /version: why", kind=kind)
    error = top
    for cause in causes:
        error.__cause__ = cause
        error = cause
    assert isinstance(top, errors.Unreachable)
    return top


def tls(reason: str = "", verify_message: str = "") -> ssl.SSLError:
    found = ssl.SSLError(1, f"[SSL: {reason}] alert")
    found.reason = reason
    if verify_message:
        found.verify_message = verify_message  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("answer", [[], "ok", 0])
async def test_non_object_response_is_not_accepted_as_an_api_server(answer: Any) -> None:
    asked = case({"/version": answer, "/deployments": answer})
    asked.cluster = SimpleNamespace(server="https://x")  # type: ignore[assignment]

    assert (await reach.server(asked)).severity is Severity.FAIL
    with pytest.raises(msgspec.ValidationError):
        await items(asked.client, "/deployments")


@pytest.mark.parametrize("kind", get_args(errors.FailureKind))
async def test_every_connection_failure_has_a_message_and_advice(kind: errors.FailureKind) -> None:
    found = reach._unreachable("https://x", unreachable(kind))

    assert (found.severity, found.details) == (Severity.FAIL, ("GET /version: why",))
    assert found.advice


@pytest.mark.parametrize(
    ("causes", "end"),
    [
        ((OSError("x"), tls("CERTIFICATE_REQUIRED")), "no TLS connection: CERTIFICATE_REQUIRED"),
        ((tls("WRONG_VERSION_NUMBER"),), "the server does not speak TLS"),
        ((tls("X", "self-signed"),), "its certificate is not trusted: self-signed"),
        ((OSError("x"),), "no TLS connection: the handshake failed"),
    ],
)
def test_tls_failure_shows_the_reason_of_the_tls_library(
    causes: tuple[Exception, ...], end: str
) -> None:
    assert reach._unreachable("https://x", unreachable("tls", *causes)).message.endswith(end)


async def test_read_only_case_sends_no_writes(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    realserver.write_kubeconfig(file, url="http://127.0.0.1:1", token="x")
    flags = options.parse([f"--kubeconfig={file}"])
    reader = Case(options=flags, environ={}, reads_only=True)

    async with reader.exit_stack:
        await reach.kubeconfig(reader)
        with pytest.raises(errors.WriteRefused):
            await reader.client.raw("POST", "/api/v1/namespaces/default/events")


FORBIDDEN = errors.Forbidden(status=403, reason="Forbidden", message="no nodes for you")


async def run(
    monkeypatch: pytest.MonkeyPatch, *checks: DoctorCheck, limit_s: float = 5.0
) -> list[CheckResult]:
    monkeypatch.setattr(examination, "CHECKS", checks)
    told: list[str] = []
    case = Case(options=Options(), environ={}, limit_s=limit_s)
    found = [one async for one in examination.examine(case, lambda check: told.append(check.name))]
    assert told == [check.name for check in checks]
    return found


def check(name: str, outcome: CheckFinding | BaseException, *needs: str) -> DoctorCheck:
    async def make(_case: Case) -> CheckFinding:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return DoctorCheck(name=name, title=name, run=make, needs=needs)


def test_every_check_depends_only_on_earlier_checks() -> None:
    known: set[str] = set()
    for each in examination.CHECKS:
        assert set(each.needs) <= known, each.name
        known.add(each.name)
    assert len(known) == len(examination.CHECKS)


async def test_failing_check_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await run(
        monkeypatch,
        check("a", ZeroDivisionError("by zero")),
        check("b", ExceptionGroup("several", [FORBIDDEN])),
        check("c", errors.Unreachable("GET /x: no answer", kind="reset")),
        check("d", ok("made")),
        check("e", cloud.Unavailable("gone fishing")),
        check("f", ok("never"), "b"),
    )

    assert [(result.check, result.finding.severity.value) for result in found] == [
        ("a", "fail"),
        ("b", "skip"),
        ("c", "fail"),
        ("d", "ok"),
        ("e", "fail"),
        ("f", "skip"),
        ("rights", "skip"),
    ]
    for index, end in ((0, "ZeroDivisionError: by zero"), (2, "no answer"), (4, "gone fishing")):
        assert found[index].finding.message.endswith(end)
    last = found[-1].finding
    assert last.message.endswith("skipped: b, f")
    # Missing permissions of the user are reported once, at the end.
    assert list(words.text(found[1])) == []
    assert list(words.text(found[-1]))[1:] == [
        "      b: no nodes for you (403 Forbidden)",
        *(f"      next: {line}" for line in last.advice),
    ]


async def test_error_on_close_is_reported_as_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def thing() -> AsyncIterator[None]:
        yield
        raise RuntimeError("stuck")

    async def open_it(given: Case) -> CheckFinding:
        await given.exit_stack.enter_async_context(thing())
        return ok("open")

    found = await run(monkeypatch, DoctorCheck(name="a", title="a", run=open_it))

    assert [result.check for result in found] == ["a", "end"]
    assert found[1].finding.message.endswith("RuntimeError: stuck")


CLOSED = "the provider cannot be opened"


Make = Callable[..., Awaitable[Case]]


@pytest_asyncio.fixture
async def make(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Return a function that builds a case with an open provider of these capabilities."""
    cases: list[Case] = []

    async def made(*words: str, fault: Exception | None = None, **offered: Any) -> Case:
        @cloud.provider(sdk="2.0")
        async def open_cloud(context: cloud.Context) -> AsyncIterator[cloud.Cloud]:
            if fault is not None:
                raise fault
            yield cloud.Cloud(name="memory", **offered)

        entry = EntryPoint("memory", "here:open_cloud", PROVIDERS)
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
        await case.exit_stack.aclose()


def having(case: Case, *names: str) -> None:
    """Set the nodes of the cluster."""
    case.findings["identity"] = ok("somebody")
    case._nodes = [builders.node(name) for name in names]


async def test_missing_cluster_id_fails_unless_untagged_clouds_are_allowed(make: Make) -> None:
    strict = await make()
    allowed = await make("--allow-untagged-cloud")
    marked = await make(has_cluster_id=True)

    found = [(await provider.cluster_id(case)).severity.value for case in (strict, allowed, marked)]

    assert found == ["fail", "warn", "ok"]


async def test_provider_without_a_listing_is_queried_node_by_node(make: Make) -> None:
    api = MemoryApi()
    api.create("a")
    case = await make(instances=MemoryProvider(api))

    none = await provider.cloud(case)
    having(case, "a", "b")
    one = await provider.cloud(case)
    missing = await nodes.instances(case)

    assert none.message.startswith("not checked: the provider lists no instances")
    assert one == ok("the cloud answers: the instance of a exists")
    assert missing.message == "1 of 2 nodes has no instance: b"
    assert [text.split(":")[0] for text in missing.advice] == [
        "a node without provider ID is matched by name"
    ]


async def test_credentials_of_a_provider_without_a_listing_are_tested_too(make: Make) -> None:
    api = MemoryApi()
    case = await make(instances=MemoryProvider(api))
    having(case, "a")
    api.token = "changed"

    assert (await provider.cloud(case)).message.startswith("the cloud rejects the credentials: ")


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (cloud.Unavailable("no route"), f"{CLOSED}: the cloud does not answer: no route"),
        (cloud.DeadlineExceeded("late"), f"{CLOSED}: the cloud does not answer: late"),
        (
            ZeroDivisionError("x"),
            f"{CLOSED}: the cloud returned an error: ZeroDivisionError: x",
        ),
        (cloud.ConfigError("one is wrong", "two too"), "no --cloud-config: one is wrong"),
    ],
)
async def test_provider_that_fails_to_open_is_reported_with_advice(
    make: Make, fault: Exception, found: str
) -> None:
    case = await make(fault=fault)

    assert case.findings["open"].message == found
    assert case.findings["open"].advice != ()


async def test_disabled_controllers_are_reported_with_the_reason(make: Make) -> None:
    none = await provider.controllers(await make("--cluster-cidr=10.0.0.0/8"))
    assert none.message == "no controller can run with these flags"
    assert (
        "cloud-node-controller is disabled: the provider does not implement instances"
        in none.details
    )

    offered = MemoryProvider(MemoryApi())
    case = await make("--configure-cloud-routes=false", instances=offered)

    assert await provider.controllers(case) == ok(
        "cloud-node-controller, cloud-node-lifecycle-controller",
        "service-lb-controller is disabled: the provider does not implement load balancers",
        "node-route-controller is disabled: --configure-cloud-routes is false",
    )


async def test_provider_clients_of_the_doctor_refuse_writes() -> None:
    sent: list[str] = []

    class Wire(Client):
        """Client that accepts every request."""

        def __init__(self) -> None:
            self.name = ""

        async def raw(self, method: str, path: str, **_how: Any) -> bytes:
            sent.append(f"{method} {path}")
            return b"{}"

    client = provider.ReadOnlyClients(Wire()).client("memory")

    assert await client.request("GET", "/api/v1/nodes") == b"{}"
    for method in ("POST", "PUT", "PATCH", "DELETE", "patch"):
        with pytest.raises(cloud.FailedPrecondition, match="writes are refused"):
            await client.request(method, "/api/v1/nodes/a")
    assert sent == ["GET /api/v1/nodes"]


GONE = [
    PlannedChange(
        subject=ChangedObject("Node", "", "n1"), action=ChangeKind.DELETE, what="Node", after_s=5
    ),
    PlannedChange(
        subject=ChangedObject("Route", "", "10.0.1.0/24"),
        action=ChangeKind.DELETE,
        what=ROUTE,
        old="to n1",
    ),
    PlannedChange(
        subject=ChangedObject("Service", "a", "b"), action=ChangeKind.DELETE, what=BALANCER
    ),
]


FIELD = PlannedChange(
    subject=ChangedObject("Node", "", "n2"),
    action=ChangeKind.DELETE,
    what="spec.taints",
    old="a:NoSchedule",
)


OUTLOOK_HELD = [
    RecordedEvent(subject=ChangedObject("Node", "", "n3"), reason="DeletionHeld", message="why")
]


@pytest.fixture
def case_of_outlook() -> Case:
    return Case(options=options.parse(["--cloud-provider=sim"]), environ={}, limit_s=1.0)


async def found(
    case_of_outlook: Case, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> CheckFinding:
    async def forecast_of(*_: Any, **__: Any) -> Forecast:
        if callable(answer):
            await answer()
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    monkeypatch.setattr(start_forecast, "forecast_of", forecast_of)
    return await start_forecast.deletions_at_start(case_of_outlook)


def test_deletions_at_start_are_checked_first() -> None:
    assert CHECKS[0].run is start_forecast.deletions_at_start


DELETES = "starting the daemon would delete"
UNKNOWN = "the deletions at a start are unknown: "


@pytest.mark.parametrize(
    ("answer", "verdict", "text", "cause"),
    [
        (
            Forecast(changes=[*GONE, FIELD], blocked=OUTLOOK_HELD),
            Severity.WARN,
            (
                f"{DELETES} Node n1, the route 10.0.1.0/24, the load balancer of Service a/b, "
                "and block 1 deletion"
            ),
            "",
        ),
        (Forecast(changes=[FIELD]), Severity.OK, f"{DELETES} nothing", ""),
        (
            ExaminationError("no file", check="kubeconfig"),
            Severity.SKIP,
            UNKNOWN,
            "kubeconfig",
        ),
        (Forecast(failures=["list_routes: down"]), Severity.SKIP, UNKNOWN, ""),
    ],
    ids=["deletions", "nothing", "no way", "no answer"],
)
async def test_planned_deletions_at_start_are_reported(
    case_of_outlook: Case,
    monkeypatch: pytest.MonkeyPatch,
    answer: Any,
    verdict: Severity,
    text: str,
    cause: str,
) -> None:
    told = await found(case_of_outlook, monkeypatch, answer)

    assert (told.severity, told.cause) == (verdict, cause)
    assert told.message.startswith(text)


@pytest.mark.parametrize(
    ("error", "check", "text"),
    [
        (errors.Unreachable("no answer", kind="refused"), "server", "Unreachable: "),
        (
            errors.Unauthorized(status=401, reason="Unauthorized", message="who?"),
            "identity",
            "Unauthorized: ",
        ),
        (errors.Forbidden(status=403, reason="Forbidden", message="no"), "", "Forbidden: "),
        (TimeoutError(), "cloud-config", "opening the provider timed out"),
    ],
    ids=["server", "identity", "rights", "provider"],
)
async def test_forecast_error_refers_to_the_responsible_check(
    case_of_outlook: Case, monkeypatch: pytest.MonkeyPatch, error: Exception, check: str, text: str
) -> None:
    async def opened(_: Case) -> None:
        raise error

    monkeypatch.setattr(provider, "open_provider", opened)
    with pytest.raises(ExaminationError, match=text) as refused:
        await start_forecast.forecast_of(case_of_outlook.options, {})

    assert refused.value.check == check


async def test_forecast_survives_a_provider_that_fails_to_close(
    case_of_outlook: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened(case_of_outlook: Case) -> None:
        case_of_outlook.client = case_of_outlook.cloud = None  # type: ignore[assignment]
        case_of_outlook.exit_stack.callback(lambda: 1 / 0)

    async def forecast(*_: Any, **__: Any) -> Forecast:
        return Forecast(blocked=OUTLOOK_HELD)

    monkeypatch.setattr(provider, "open_provider", opened)
    monkeypatch.setattr(start_forecast, "forecast", forecast)

    assert (await start_forecast.forecast_of(case_of_outlook.options, {})).blocked == OUTLOOK_HELD


async def test_unexpected_exception_of_the_forecast_is_raised(
    case_of_outlook: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened(_: Case) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(provider, "open_provider", opened)
    with pytest.raises(ZeroDivisionError):
        await start_forecast.forecast_of(case_of_outlook.options, {})
