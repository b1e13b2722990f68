"""Text of the API server and the cloud: every output masks its secrets."""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.app import http, options
from ccm.base import log, redact
from ccm.cloud.types import Ingress, PortStatus, Status
from ccm.controllers.service import plan
from ccm.doctor import examination
from ccm.doctor.case import fail
from ccm.kube import client
from ccm.kube.events import EventRecorder
from ccm.model.meta import ObjectReference
from ccm.serving import admission
from ccm.testing.builders import service

SECRETS = (
    "hunTer2x9",
    's3"cr\\et/x y',
    "pä$$wörd+&=%1",
    "rearmost\\",
    "'q'\n<tag>;",
    "A" * 7 + "~" * 30,
)


def _b64(skip: int, *, url: bool = False, bare: bool = False) -> Callable[[str], str]:
    def encode(text: str) -> str:
        raw = b"usr:"[:skip] + text.encode() + b"tail"[: skip % 2]
        made = (base64.urlsafe_b64encode if url else base64.b64encode)(raw).decode()
        return made.rstrip("=") if bare else made

    return encode


ENCODINGS: Mapping[str, Callable[[str], str]] = {
    "raw": str,
    "json": lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    "json-ascii": lambda text: json.dumps(text)[1:-1],
    "json-go": lambda text: (
        json.dumps(text, ensure_ascii=False)[1:-1]
        .replace("<", "\\u003c")
        .replace(">", "\\u003e")
        .replace("&", "\\u0026")
    ),
    "repr": lambda text: repr(text)[1:-1],
    "base64": _b64(0),
    "base64-bare": _b64(0, bare=True),
    "base64-shifted": _b64(1),
    "base64-user": _b64(4),
    "base64-shifted-more": _b64(2, bare=True),
    "base64url": _b64(0, url=True),
    "base64url-user": _b64(4, url=True, bare=True),
}
SURROUNDINGS = (
    "%s", "refused: %s is wrong", "password: %s", "token='%s'", 'token="%s"', '{"token": "%s"}',
    "{'X-Auth-Token': '%s'}", "https://user:%s@host/x", "https://host/x?sig=%s&n=1", "--token %s",
    "Authorization: Bearer %s", "Authorization: Basic %s", "Cookie: sid=%s; a=b", "[%s]", "(%s)",
    "<%s>", "x\n%s\ny", "%s, %s", "\x1b[1m%s\x1b[0m", "a" * 1100 + " %s", "b'%s'",
    "%s" + "z" * 9000,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _known() -> Iterator[None]:
    for secret in SECRETS:
        redact.register(secret)
    yield
    for secret in SECRETS:
        redact.unregister(secret)


def _logged(fmt: log.Format, said: str) -> str:
    root = logging.getLogger()
    handlers, level, stream = root.handlers, root.level, io.BytesIO()
    log.setup(fmt=fmt, stream=stream)
    try:
        raise ValueError(said)
    except ValueError as error:
        log.logger("node").error(said, error=error, detail=[said], exc_info=error)
    finally:
        log.setup()
        root.handlers, root.level = handlers, level
    return stream.getvalue().decode()


def _event(said: str) -> str:
    recorder = EventRecorder(SimpleNamespace(), component="x")  # type: ignore[arg-type]
    recorder.event(ObjectReference(name="n"), "Warning", "Failed", said)
    event = recorder._queue.get_nowait()
    assert len(event.message.encode()) <= redact.MAX_PUBLIC_BYTES
    return event.message


def _status(said: str) -> str:
    ports = [PortStatus(port=80, protocol="TCP", error=said)]
    wanted = Status(ingress=[Ingress(hostname=f"{said} ", ports=ports)])
    patch = plan.status_patch(service("a", type="LoadBalancer"), wanted)
    assert patch is not None
    found = json.loads(client.encode(patch))["status"]["loadBalancer"]["ingress"][0]
    assert len(found["ports"][0]["error"].encode()) <= redact.MAX_PUBLIC_BYTES
    return f"{found['hostname']} {found['ports'][0]['error']}"


def _doctor(said: str) -> str:
    return str(examination._clean(fail(said, said, details=[said])))


def _webhook(said: str) -> str:
    answer = admission.AdmissionResponse(allowed=False, message=said, warnings=[said])
    return admission.encode(admission.AdmissionRequest(uid="u"), answer).decode()


def _configz(said: str) -> str:
    chosen = options.parse([f"--master={said}", "--cloud-provider=sim"])
    return json.dumps(http.configz(chosen), ensure_ascii=False)


def _log_of(fmt: log.Format) -> Callable[[str], str]:
    return lambda said: _logged(fmt, said)


WAYS_OUT: Mapping[str, Callable[[str], str]] = {
    "log-json": _log_of("json"), "log-text": _log_of("text"), "log-dev": _log_of("dev"),
    "event": _event, "status": _status, "doctor": _doctor, "webhook": _webhook,
    "configz": _configz,
}  # fmt: skip


@given(
    secret=st.sampled_from(SECRETS),
    encoding=st.sampled_from(sorted(ENCODINGS)),
    around=st.sampled_from(SURROUNDINGS),
)
@pytest.mark.parametrize("way", sorted(WAYS_OUT))
def test_known_secret_is_masked_in_every_output(
    way: str, secret: str, encoding: str, around: str
) -> None:
    _does_not_leave(way, ENCODINGS[encoding](secret), around)


def _does_not_leave(way: str, written: str, around: str) -> None:
    shown = WAYS_OUT[way](around.replace("%s", written))

    for again in (str, ENCODINGS["json"], ENCODINGS["repr"]):
        assert again(written) not in shown
    if way == "log-json":
        json.loads(shown)
