"""What is wrong with the daemon's Pods, and which Secrets they need. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from ccm.doctor import deployment, objects

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
LATELY, YESTERDAY = "2026-11-23T11:30:00Z", "2026-11-22T11:30:00Z"


def pod(status: dict[str, Any], **metadata: Any) -> objects.Pod:
    given = {"metadata": {"name": "p", **metadata}, "status": status}
    return msgspec.convert(given, objects.Pod)


def container(**status: Any) -> dict[str, Any]:
    return {"phase": "Running", "containerStatuses": [{"name": "main", **status}]}


def ended(reason: str, code: int, at: str) -> dict[str, Any]:
    return {"terminated": {"reason": reason, "exitCode": code, "finishedAt": at}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


UNPLACED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (container(ready=True), []),
        (container(state=waiting("ImagePullBackOff", "no x")), ["Pod p: ImagePullBackOff: no x"]),
        (
            container(
                state=waiting("CrashLoopBackOff"),
                lastState=ended("Error", 1, LATELY),
            ),
            ["Pod p: CrashLoopBackOff: ended with exit code 1"],
        ),
        (container(state=waiting("ContainerCreating")), ["Pod p: ContainerCreating"]),
        (container(ready=False), ["Pod p: NotReady: it runs and says that it is not ready"]),
        (
            container(
                ready=True,
                restartCount=2,
                lastState=ended("OOMKilled", 137, LATELY),
            ),
            ["Pod p: OOMKilled: 2 restarts, the last time it ended with exit code 137 (OOMKilled)"],
        ),
        (
            container(ready=True, restartCount=2, lastState=ended("Error", 1, YESTERDAY)),
            [],
        ),
        ({"phase": "Pending", "conditions": [UNPLACED]}, ["Pod p: Unschedulable: full"]),
        ({"phase": "Failed", "reason": "Evicted", "message": "m"}, ["Pod p: Evicted: m"]),
        ({"phase": "Pending"}, []),
    ],
)
def test_a_pod_that_does_not_work_says_why(status: dict[str, Any], told: list[str]) -> None:
    assert [str(one) for one in deployment.troubles_of(pod(status), NOW)] == told


def test_a_pod_that_goes_away_is_nobodys_trouble() -> None:
    going = pod(container(ready=False), deletionTimestamp=LATELY)

    assert list(deployment.troubles_of(going, NOW)) == []


def of(volumes: list[dict[str, Any]] | None = None, **given: Any) -> objects.Deployment:
    """A Deployment with a side-car before the daemon."""
    main = {"name": "main", "args": ["--cloud-provider=x", "--cloud-config=/etc/ccm/c.yaml"]}
    template = {"spec": {"containers": [{"name": "proxy"}, main | given], "volumes": volumes or []}}
    return msgspec.convert({"metadata": {}, "spec": {"template": template}}, objects.Deployment)


CONFIG = {"name": "config", "mountPath": "/etc/ccm"}
FILE = {"name": "config", "mountPath": "/etc/ccm/c.yaml", "subPath": "cloud"}


@pytest.mark.parametrize(
    ("mount", "secret", "wanted"),
    [
        (CONFIG, {"secretName": "s"}, [("s", "c.yaml")]),
        (CONFIG, {"secretName": "s", "items": [{"key": "k", "path": "c.yaml"}]}, [("s", "k")]),
        (FILE, {"secretName": "s"}, [("s", "cloud")]),
        (CONFIG, {"secretName": "s", "optional": True}, []),
        ({"name": "config", "mountPath": "/certs"}, {"secretName": "s"}, [("s", "")]),
        (CONFIG, None, []),
    ],
    ids=["folder", "items", "one file", "optional", "elsewhere", "no Secret"],
)
def test_a_mounted_secret_and_the_key_of_the_cloud_config(
    mount: dict[str, Any], secret: dict[str, Any] | None, wanted: list[tuple[str, str]]
) -> None:
    found = of([{"name": "config", **({"secret": secret} if secret else {})}], volumeMounts=[mount])

    assert [(one.secret, one.key) for one in deployment.wanted_secrets(found)] == wanted
    assert deployment.is_mounted(found, "/etc/ccm/c.yaml") == (mount["mountPath"] != "/certs")


def test_variables_come_from_secrets_too() -> None:
    ref = {"secretKeyRef": {"name": "t", "key": "token"}}
    found = of(
        env=[{"name": "A", "value": "1"}, {"name": "T", "valueFrom": ref}],
        envFrom=[{"secretRef": {"name": "all"}}, {"secretRef": {"name": "may", "optional": True}}],
    )

    told = [(one.secret, one.key) for one in deployment.wanted_secrets(found)]
    assert told == [("all", ""), ("t", "token")]
