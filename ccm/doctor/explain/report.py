"""An explanation as people and programs read it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from ccm.cloud.calls.history import OK
from ccm.doctor.explain import words
from ccm.doctor.explain.subject import Case
from ccm.doctor.explain.verdict import Verdict
from ccm.model.meta import Wire
from ccm.runtime.account import Account, Answer, CallSaid

_INDENT = "  "


class Document(Wire, frozen=True, kw_only=True, omit_defaults=False):
    """For programs.

    Attributes:
        cause: the first line that people read.
        is_well: whether nothing is to be done.
        advice: what to do.
        daemon: its whole answer; None: it was not asked.
        silence: why not.
    """

    kind: str
    name: str
    cause: str
    is_well: bool = False
    exists: bool = True
    advice: tuple[str, ...] = ()
    daemon: Answer | None = None
    silence: str = ""


def document(case: Case, verdict: Verdict) -> Document:
    """Everything, for programs."""
    return Document(
        kind=case.kind,
        name=case.name,
        cause=verdict.said,
        is_well=verdict.is_well,
        exists=case.found is not None,
        advice=verdict.advice,
        daemon=case.answer,
        silence=case.silence.why if case.silence is not None else "",
    )


def lines(case: Case, verdict: Verdict) -> Iterator[str]:
    """The cause first, then what it rests on, and what to do."""
    yield verdict.said
    answer = case.answer
    if answer is not None:
        provider = f" (provider {answer.provider})" if answer.provider else ""
        yield f"{_INDENT}owner: {_owner(answer)}{provider}"
        for account in answer.accounts:
            yield from _account(account)
        yield from (f"{_INDENT}{name}: {why}" for name, why in answer.absent.items())
        for held in answer.held:
            yield f"{_INDENT}held back: {held.reason}, since {held.since}"
        calls = sorted((*answer.general, *answer.calls), key=lambda each: -each.ago_s)
        if calls:
            yield f"{_INDENT}last calls to the cloud:"
        for call in calls:
            yield f"{_INDENT * 2}{_call(call)}"
    for advice in verdict.advice:
        yield f"{_INDENT}next: {advice}"


def _owner(answer: Answer) -> str:
    strangers = [account for account in answer.accounts if account.foreign]
    return "another" if strangers else "this daemon"


def _account(account: Account) -> Iterator[str]:
    yield f"{_INDENT}{account.controller}: {account.state}"
    if account.plan:
        yield f"{_INDENT * 2}plan: {account.plan}"
    last = account.last
    if last is not None:
        failed = f"{last.kind}: {last.text}" if last.kind else ""
        lasts = f", failing for {words.span(last.since_s)}" if failed and last.since_s >= 1 else ""
        outcome = failed or ("not done yet" if last.not_yet else "done, without an error")
        yield f"{_INDENT * 2}last look: {words.ago(last.ago_s)}, {outcome}{lasts}"
    if account.in_work:
        yield f"{_INDENT * 2}in work now"
    elif account.next_s is not None:
        soon = f"in {words.span(account.next_s)}" if account.next_s else "at once"
        yield f"{_INDENT * 2}next look: {soon}"


def _call(call: CallSaid) -> str:
    times = f" x{call.times}" if call.times > 1 else ""
    took = f", took {words.span(call.took_s)}" if call.took_s else ""
    answer = f" ({call.answer})" if call.answer else ""
    text = f": {call.text}" if call.text else ""
    state = "ok" if call.state == OK else call.state
    return f"{words.ago(call.ago_s)}  {call.verb}{times}  {state}{answer}{took}{text}"
