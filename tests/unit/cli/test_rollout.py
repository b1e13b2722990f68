"""`kube-ccm rollout`: its command line, and what it says of a deployment."""

from __future__ import annotations

import io
from typing import Any

import pytest

from ccm.app.options.argv import UsageError
from ccm.cli import rollout
from ccm.gardener import rolloutstatus
from ccm.gardener.sets import (
    DeploymentCondition,
    MachineDeployment,
    MachineDeploymentSpec,
    MachineDeploymentStatus,
)
from ccm.gardener.types import MachineTemplateSpec
from ccm.model import ObjectMeta

STUCK = DeploymentCondition(
    type="Progressing", status="False", reason="ProgressDeadlineExceeded", message="timed out"
)
REFUSED = DeploymentCondition(
    type="Progressing", status="False", reason="MachineSetCreateError", message="quota"
)


def deployment(
    status: dict[str, Any], *, replicas: int = 3, paused: bool = False
) -> MachineDeployment:
    return MachineDeployment(
        metadata=ObjectMeta(name="web", generation=2),
        spec=MachineDeploymentSpec(
            template=MachineTemplateSpec(), replicas=replicas, paused=paused
        ),
        status=MachineDeploymentStatus(**{"observed_generation": 2, **status}),
    )


@pytest.mark.parametrize(
    ("status", "more", "text"),
    [
        ({"observed_generation": 1}, {}, "to be looked at by its controller..."),
        ({"updated_replicas": 1}, {}, "1 of 3 machines are new..."),
        ({"updated_replicas": 1}, {"paused": True}, "1 of 3 machines are new; it is paused..."),
        ({"conditions": [REFUSED]}, {}, "quota; it is tried again..."),
        ({"updated_replicas": 3, "replicas": 4}, {}, "1 old machine to go..."),
        ({"updated_replicas": 5, "replicas": 5}, {}, "2 machines too many to go..."),
        (
            {"updated_replicas": 3, "replicas": 3, "available_replicas": 2},
            {},
            "2 of 3 new machines are available...",
        ),
    ],
    ids=["unseen", "old", "paused", "refused", "going", "too-many", "not-available"],
)
def test_how_far_it_is(status: dict[str, Any], more: dict[str, bool], text: str) -> None:
    found = rolloutstatus.progress_of(deployment(status, **more))

    assert found.text.startswith('Waiting for "web"')
    assert found.text.endswith(text)
    assert (found.done, found.failed) == (False, False)


def test_the_end_of_it() -> None:
    all_new = {"updated_replicas": 3, "replicas": 3, "available_replicas": 3}

    done = rolloutstatus.progress_of(deployment(all_new))
    stuck = rolloutstatus.progress_of(deployment({"conditions": [STUCK]}))

    assert (done.text, done.done, done.failed) == ('"web" is rolled out', True, False)
    assert (stuck.text, stuck.failed) == ('"web" does not move on: timed out', True)


@pytest.mark.parametrize(
    ("words", "action"),
    [
        (["status", "machinedeployment/web"], "status"),
        (["undo", "mcd/web", "--to-revision=3"], "undo"),
        (["pause", "mcd", "web"], "pause"),
        (["resume", "machinedeployments/web", "--namespace=shoot"], "resume"),
    ],
)
def test_words(words: list[str], action: str) -> None:
    wanted = rollout.read(words)

    assert (wanted.action, wanted.name) == (action, "web")
    assert wanted.revision == (3 if action == "undo" else 0)
    assert wanted.options.namespace == ("shoot" if action == "resume" else "default")


@pytest.mark.parametrize(
    "words", [[], ["status"], ["stop", "mcd/web"], ["status", "pod/web"], ["status", "mcd/"]]
)
def test_words_that_make_no_sense(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="one of status, undo, pause, resume"):
        rollout.read(words)
    assert rollout.run(words) == 1
    assert "then machinedeployment/NAME" in capsys.readouterr().err


def test_the_help_teaches() -> None:
    out = io.StringIO()

    assert rollout.run(["--help"], out=out) == 0
    for word in ("exit status", "--to-revision", "--timeout", "kube-ccm rollout undo mcd/workers"):
        assert word in out.getvalue()


def test_a_kubeconfig_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout.run(["status", "mcd/web", "--kubeconfig=/does/not/exist"]) == 1
    assert "/does/not/exist" in capsys.readouterr().err
