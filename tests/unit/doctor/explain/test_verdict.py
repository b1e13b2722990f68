"""The cause where the daemon itself, not the object, is what is stuck."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccm.cloud.errors import POLICY
from ccm.doctor.explain import words
from ccm.doctor.explain.report import document, lines
from ccm.doctor.explain.subject import Case, Silence
from ccm.doctor.explain.verdict import judge
from ccm.kube import errors
from ccm.runtime.account import Account, Answer, CallSaid, Last
from ccm.testing.builders import node, uninitialized_taint

WAITS = node("n1", taints=[uninitialized_taint()])
WORKS = Account(controller="cloud-node-controller", state="not initialised")
LEADS = Answer(kind="node", name="n1", provider="sim", leads=True, accounts=[WORKS])


def said(answer: Answer) -> str:
    return judge(Case(kind="node", name="n1", found=WAITS, answer=answer)).said


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (
            Answer(kind="node", name="n1", opening="the provider cannot be opened: 401 no"),
            "n1 is not initialised: the provider cannot be opened: 401 no",
        ),
        (
            Answer(kind="node", name="n1"),
            "n1 is not initialised: the daemon that was asked stands by, and knows nothing of it",
        ),
        (
            Answer(kind="node", name="n1", leads=True, lease="lease x could not be renewed"),
            "n1 is not initialised: nothing is begun any more: lease x could not be renewed",
        ),
        (
            Answer(kind="node", name="n1", leads=True, api="nodes cannot be followed for 40 s"),
            (
                "n1 is not initialised: the daemon does not hear of the cluster: nodes cannot be "
                "followed for 40 s"
            ),
        ),
        (
            Answer(
                kind="node",
                name="n1",
                leads=True,
                absent={"cloud-node-controller": "not running: the provider offers no instances"},
            ),
            (
                "n1 is not initialised: controller cloud-node-controller is not running: the "
                "provider offers no instances"
            ),
        ),
    ],
    ids=["not open", "standby", "fenced", "deaf", "lacking"],
)
def test_what_keeps_the_daemon_from_its_work_is_the_cause(answer: Answer, cause: str) -> None:
    assert said(answer) == cause


def test_a_cloud_that_has_nothing_to_say_yet_is_no_error() -> None:
    account = Account(
        controller="cloud-node-controller",
        state="not initialised",
        last=Last(ago_s=3.0, not_yet=True),
        next_s=2.0,
    )

    told = said(Answer(kind="node", name="n1", leads=True, accounts=[account]))

    assert told == (
        "n1 is not initialised: the cloud has nothing to say about its instance yet; next try in "
        "2 s"
    )


def test_a_call_that_has_only_begun_is_not_the_cause() -> None:
    call = CallSaid(verb="instance_metadata", state="running", ago_s=0.2, deadline_s=60.0)
    failed = Account(
        controller="cloud-node-controller",
        state="not initialised",
        last=Last(ago_s=9.0, kind="Unavailable", text="503"),
        in_work=True,
        failures=4,
    )

    told = said(Answer(kind="node", name="n1", leads=True, accounts=[failed], calls=[call]))

    assert told == (
        "n1 is not initialised: the cloud cannot be reached, or is in trouble (503) 9 s ago, 4 "
        "times in a row; it is being tried now"
    )


def test_what_is_given_up_is_tried_again_when_it_changes() -> None:
    last = Last(ago_s=9.0, kind="ImplementedElsewhere", text="by another")
    account = Account(controller="cloud-node-controller", state="not initialised", last=last)

    told = said(Answer(kind="node", name="n1", leads=True, accounts=[account]))

    assert told.endswith("; it is tried again when it changes")


def test_a_silent_daemon_is_told_apart_from_none() -> None:
    case = Case(kind="node", name="n1", found=WAITS, silence=Silence(why="403", advice="do it"))

    asked = judge(case)
    assert case.silence is not None
    leaderless = replace(case, silence=replace(case.silence, is_leaderless=True))

    assert asked.said == "n1 is not initialised: the daemon that leads cannot be asked: 403"
    assert asked.advice == ("do it",)
    assert judge(leaderless).said == "n1 is not initialised: no daemon leads: 403"
    assert document(case, asked).silence == "403"


@pytest.mark.parametrize("kind", [*POLICY, errors.Unreachable, errors.Forbidden, KeyError])
def test_each_class_of_error_has_words_and_advice(kind: type[Exception]) -> None:
    assert words.cause(kind.__name__)
    assert words.advice(kind.__name__)
    is_defect = words.cause(kind.__name__) == "the daemon itself failed"
    assert is_defect is (kind is KeyError)


def test_all_that_the_daemon_said_is_shown() -> None:
    last = Last(ago_s=12.0, kind="Unavailable", text="503", since_s=60.0)
    account = Account(
        controller="cloud-node-controller",
        state="not initialised",
        plan="ask the cloud",
        last=last,
        next_s=48.0,
    )
    call = CallSaid(
        verb="instance_metadata", state="Unavailable", ago_s=12.0, took_s=0.5, times=3, text="503"
    )
    answer = Answer(
        kind="node", name="n1", provider="sim", leads=True, accounts=[account], calls=[call]
    )
    case = Case(kind="node", name="n1", found=WAITS, answer=answer)

    assert list(lines(case, judge(case))) == [
        (
            "n1 is not initialised: the cloud cannot be reached, or is in trouble (503) 12 s ago; "
            "next try in 48 s"
        ),
        "  owner: this daemon (provider sim)",
        "  cloud-node-controller: not initialised",
        "    plan: ask the cloud",
        "    last look: 12 s ago, Unavailable: 503, failing for 60 s",
        "    next look: in 48 s",
        "  last calls to the cloud:",
        "    12 s ago  instance_metadata x3  Unavailable, took 500 ms: 503",
        (
            "  next: look at the cloud's state, and whether its API can be reached from the "
            "daemon's node; it is tried again by itself"
        ),
    ]
