"""Admission reviews on the wire."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from ccm.serving import admission

REVIEW: dict[str, Any] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "resource": {"group": "", "version": "v1", "resource": "services"},
        "subResource": "status",
        "requestKind": {"group": "", "version": "v1", "kind": "Service"},
        "operation": "UPDATE",
        "userInfo": {"username": "admin", "groups": ["system:masters"], "extra": {"a": ["b"]}},
        "object": {"kind": "Service", "metadata": {"name": "web"}},
        "oldObject": None,
        "options": None,
    },
}


def decoded(**changes: Any) -> admission.Request:
    return admission.decode(json.dumps({**REVIEW, **changes}).encode())


def answered(answer: admission.Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(admission.encode(decoded(), answer))
    return found


def test_a_request_is_read() -> None:
    request = decoded()

    assert request.uid == "705ab4f5"
    assert request.kind == admission.GroupVersionKind(version="v1", kind="Service")
    assert request.resource.resource == "services"
    assert (request.sub_resource, request.operation) == ("status", admission.UPDATE)
    assert request.user_info.groups == ["system:masters"]
    assert json.loads(bytes(request.object)) == REVIEW["request"]["object"]
    assert bytes(request.old_object) == bytes(decoded(request={"uid": "u"}).object) == b"null"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "no AdmissionReview"),
        (b"[]", "no AdmissionReview"),
        (b"\xff", "no AdmissionReview"),
        (b"[" * 100_000, "no AdmissionReview"),
        (b"{}", "expected 'admission.k8s.io/v1'"),
        (json.dumps({**REVIEW, "apiVersion": "admission.k8s.io/v1beta1"}).encode(), "v1beta1"),
        (json.dumps({**REVIEW, "kind": "Pod"}).encode(), "kind 'Pod'"),
        (json.dumps({**REVIEW, "request": None}).encode(), "has no request"),
        (json.dumps({**REVIEW, "request": {"uid": 1}}).encode(), "uid"),
        (json.dumps({**REVIEW, "request": {}}).encode(), "uid"),
    ],
    ids=[
        *("cut off", "a list", "not UTF-8", "nested too deeply", "no kind", "an older version"),
        *("another kind", "no request", "a UID that is no text", "a request without UID"),
    ],
)
def test_what_cannot_be_answered_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(admission.Malformed, match=message):
        admission.decode(body)


def test_a_refusal_carries_its_message_and_the_warnings() -> None:
    answer = admission.Answer(allowed=False, message="no", warnings=("careful",))

    assert answered(answer)["response"] == {
        "uid": "705ab4f5",
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "no"},
        "warnings": ["careful"],
    }


def test_a_patch_is_sent_as_go_reads_bytes() -> None:
    patch = [{"op": "remove", "path": "/metadata/annotations"}]

    response = answered(admission.Answer(allowed=True, patch=patch))["response"]

    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"])) == patch
