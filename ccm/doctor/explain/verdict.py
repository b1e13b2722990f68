"""From what the daemon and the cluster say of an object to the one cause, in a sentence. Pure.

The rules are tried in order: whose it is, whether anybody looks after it, what keeps the daemon
from its work at all, and then what it knows of this object. The first that applies is the cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ccm.base.fence import Lapsed
from ccm.cloud.calls.history import CANCELED, OK, RUNNING, WAITING
from ccm.doctor.explain import words
from ccm.doctor.explain.subject import MACHINE, SERVICE, Case, state
from ccm.gardener.explaining import DEPLOYMENT, SET
from ccm.model import Node, Service, names
from ccm.model.node import is_uninitialized
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.runtime.account import Account, CallSaid

_INITIALISES, _WATCHES = "cloud-node-controller", "cloud-node-lifecycle-controller"
_BALANCES, _ROUTES = "service-lb-controller", "node-route-controller"
_MACHINES = "machine-controller"

_CONTROLLERS = {
    SERVICE: (_BALANCES, "*"),
    MACHINE: (_MACHINES, "*,machine,machineclass,machinesafety"),
    SET: ("machine-set-controller", "*,machine,machineclass,machinesafety,machineset"),
    DEPLOYMENT: (
        "machine-deployment-controller",
        "*,machine,machineclass,machinesafety,machineset,machinedeployment",
    ),
}
"""Kind of object -> who looks after it, and what --controllers has to say for that."""

_READY, _NO_ROUTE = "ready", "no route"
"""States that controllers tell of, which the first line tells in its own way."""

SLOW_S = 3.0
"""A call that lasts longer, or waits longer for its turn, is what a person waits for."""

_FENCED = Lapsed.__name__
"""How the text begins of a call that was not made for want of a lease."""

_NONE = ("", "", 0.0, 0)
"""No error: class, text, age, number."""

_HELD = {
    "services_missing": "many Services are gone though nobody saw them deleted, so their load "
    "balancers stay until the Services are back",
    "nodes_missing": "many nodes are gone, or have no Pod range any more, though nobody saw them "
    "deleted, so their routes stay until they are back",
}
_ALLOW = (
    "bring the objects back, or allow their deletion: annotate ConfigMap kube-ccm-deletions beside "
    f"the Lease with {names.ANNOTATION_ALLOW_DELETION}=true"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The cause.

    Attributes:
        said: the first line.
        advice: what to do, a line each; empty: nothing.
        is_well: whether nothing is to be done about the object.
    """

    said: str
    advice: tuple[str, ...] = ()
    is_well: bool = False


def judge(case: Case) -> Verdict:
    """Name the cause."""
    for rule in (
        _unserved,
        _foreign,
        _nobody,
        _not_leading,
        _gone,
        _not_wanted,
        _turned_off,
        _of_accounts,
    ):
        if (found := rule(case)) is not None:
            return found
    return _well(case)


# --- the rules, in their order ------------------------------------------------------------------


def _unserved(case: Case) -> Verdict | None:
    if case.is_served:
        return None
    return Verdict(
        said=f"{state(case)}: the API server knows no {case.kind}s, their definitions are missing",
        advice=("kubectl apply -f manifests/crds.yaml; the daemon goes on by itself then",),
    )


def _foreign(case: Case) -> Verdict | None:
    told = [account.foreign for account in _accounts(case) if account.foreign]
    why = next(iter(told), "" if case.answer is not None else case.foreign)
    if not why or case.found is None:
        return None
    if case.kind == SERVICE:
        advice = "nothing, if another controller serves that class; else claim it with "
        advice += "--load-balancer-classes"
    elif case.kind in (MACHINE, SET, DEPLOYMENT):
        advice = "nothing, if another daemon looks after that namespace; else give --namespace"
    else:
        advice = "nothing, if another manager looks after it; else correct the node, or --own-nodes"
    return Verdict(said=f"{case.name} is not this daemon's: {why}", advice=(advice,))


def _nobody(case: Case) -> Verdict | None:
    silence = case.silence
    if case.answer is not None or silence is None:
        return None
    who = "no daemon leads" if silence.is_leaderless else "the daemon that leads cannot be asked"
    return Verdict(said=f"{state(case)}: {who}: {silence.why}", advice=(silence.advice,))


def _not_leading(case: Case) -> Verdict | None:
    answer = case.answer
    assert answer is not None
    if answer.opening:
        return Verdict(
            said=f"{state(case)}: {answer.opening}",
            advice=(
                (
                    "correct what the message names: the file of --cloud-config is read again by "
                    "itself; kube-ccm doctor looks at the provider and its configuration"
                ),
            ),
        )
    if not answer.leads:
        return Verdict(
            said=f"{state(case)}: the daemon that was asked stands by, and knows nothing of it",
            advice=("ask the one that holds the Lease: leave out --address",),
        )
    if answer.lease:
        return Verdict(
            said=f"{state(case)}: nothing is begun any more: {answer.lease}",
            advice=("look at the API server, and at the daemon's way to it",),
        )
    if answer.api:
        return Verdict(
            said=f"{state(case)}: the daemon does not hear of the cluster: {answer.api}",
            advice=("look at the API server, and at the daemon's way to it and rights there",),
        )
    return None


def _gone(case: Case) -> Verdict | None:
    if case.found is not None:
        return None
    if held := _held(case):
        return Verdict(said=f"{state(case)}: {held}", advice=(_ALLOW,))
    for account in _accounts(case):
        if account.plan:
            return _failing(case, account) or Verdict(
                said=f"{state(case)}: the daemon is about to {account.plan}{_then(account)}"
            )
    return Verdict(said=f"{state(case)}, and nothing is left to do about it", is_well=True)


def _not_wanted(case: Case) -> Verdict | None:
    found = case.found
    if not isinstance(found, Service) or found.type == TYPE_LOAD_BALANCER:
        return None
    if any(account.plan for account in _accounts(case)):
        return None
    kind = found.type or "ClusterIP"
    return Verdict(said=f"{case.name} asks for no load balancer: its type is {kind}", is_well=True)


def _turned_off(case: Case) -> Verdict | None:
    answer = case.answer
    assert answer is not None
    if case.kind in _CONTROLLERS:
        needed, wanted = _CONTROLLERS[case.kind]
    elif isinstance(case.found, Node) and is_uninitialized(case.found):
        needed, wanted = _INITIALISES, "*"
    else:
        return None
    if any(account.controller == needed for account in answer.accounts):
        return None
    why = answer.absent.get(needed, "not running: it is turned off by --controllers")
    return Verdict(
        said=f"{state(case)}: controller {needed} is {why}",
        advice=(
            f"turn it on by --controllers={wanted}, with a provider that offers what it needs",
        ),
    )


def _of_accounts(case: Case) -> Verdict | None:
    for account in _accounts(case):
        for rule in (_hanging, _blocked, _failing, _not_yet):
            if (found := rule(case, account)) is not None:
                return found
    return None


def _well(case: Case) -> Verdict:
    accounts = _accounts(case)
    busy = next((each for each in accounts if each.plan and not _is_routine(each)), None)
    if busy is not None:
        return Verdict(said=f"{state(case)}: the daemon is about to {busy.plan}{_then(busy)}")
    known = ", ".join(dict.fromkeys(each.state for each in accounts if each.state != _READY))
    return Verdict(
        said=f"{state(case)}, and nothing is to be done ({known})",
        advice=tuple(account.advice for account in accounts if account.advice),
        is_well=True,
    )


# --- about one account --------------------------------------------------------------------------


def _hanging(case: Case, account: Account) -> Verdict | None:
    """A call that lasts."""
    for call in _calls(case, account):
        if call.state == RUNNING and call.ago_s >= SLOW_S:
            said = f"the cloud has not answered {call.verb} for {words.span(call.ago_s)}"
            limit = f"given up after {words.span(call.deadline_s)}"
            return Verdict(
                said=f"{_how(case, account)}: {said}; {limit}",
                advice=("look at the cloud's state; when the call is given up, it is tried again",),
            )
        if call.state == WAITING and call.ago_s >= SLOW_S:
            said = f"{call.verb} has waited {words.span(call.ago_s)} for its turn"
            return Verdict(
                said=f"{_how(case, account)}: {said}: the limit of calls to the cloud is used up",
                advice=(
                    (
                        "nothing, its turn comes; where that lasts, look which calls are so many "
                        "(metric ccm_cloud_calls_total)"
                    ),
                ),
            )
    return None


def _blocked(case: Case, account: Account) -> Verdict | None:
    """Something that a person decides, or has to."""
    if not account.blocked:
        return None
    advice = (account.advice,) if account.advice else ()
    return Verdict(said=f"{_how(case, account)}: {account.blocked}", advice=advice)


def _failing(case: Case, account: Account) -> Verdict | None:
    """The last try failed."""
    kind, text, ago_s, times = _error(case, account)
    if not kind:
        return None
    told = f"{words.cause(kind)} ({text})"
    if text.startswith(_FENCED):
        return Verdict(
            said=f"{_how(case, account)}: nothing was begun, because the daemon's lease may have "
            f"run out {words.ago(ago_s)}{_then(account)}",
            advice=("look at the API server, and at the daemon's way to it",),
        )
    if kind == "NotFound" and isinstance(case.found, Node) and account.controller != _ROUTES:
        named = case.found.provider_id or f"an instance named {case.name}"
        told = f"the cloud does not know {named} ({text})"
    again = f", {times} times in a row" if times > 1 else ""
    said = f"{_how(case, account)}: {told} {words.ago(ago_s)}{again}{_then(account)}"
    is_machine = account.controller == _MACHINES
    return Verdict(said=said, advice=(words.advice(kind, is_machine=is_machine),))


def _not_yet(case: Case, account: Account) -> Verdict | None:
    if account.last is None or not account.last.not_yet:
        return None
    return Verdict(
        said=f"{_how(case, account)}: the cloud has nothing to say about its instance yet"
        f"{_then(account)}",
        advice=("nothing, if the instance is new: it is asked again by itself",),
    )


def _how(case: Case, account: Account) -> str:
    """How the object is, as far as it is this controller's work."""
    if account.controller == _ROUTES and (account.plan or account.state == _NO_ROUTE):
        return f"{case.name} has no route to its Pods"
    return state(case)


def _error(case: Case, account: Account) -> tuple[str, str, float, int]:
    """Class, text, age and number of the failures of the last try; empty: it did not fail."""
    last = account.last
    told = (last.kind, last.text, last.ago_s, account.failures) if last and last.kind else _NONE
    # Where its calls are no part of what is looked at, or their errors an outcome, they tell it.
    if account.controller not in (_ROUTES, _MACHINES) or not account.plan:
        return told
    call = _failed_call(case, account)
    if not (told[0] and call[0]):
        return told if told[0] else call
    return told if account.controller == _ROUTES or told[2] < call[2] else call


def _failed_call(case: Case, account: Account) -> tuple[str, str, float, int]:
    """The last call, if it failed."""
    for call in reversed(_calls(case, account)):
        if call.state in (OK, CANCELED, RUNNING, WAITING):
            break
        return call.state, call.text, max(0.0, call.ago_s - call.took_s), call.times
    return _NONE


def _then(account: Account) -> str:
    """When it goes on."""
    if account.in_work:
        return "; it is being tried now"
    if account.next_s is None:
        return "; it is tried again when it changes"
    return f"; next try in {words.span(account.next_s)}" if account.next_s else "; next try at once"


# --- what there is ------------------------------------------------------------------------------


def _accounts(case: Case) -> Sequence[Account]:
    """Those of the controllers, the one that matters most first."""
    if case.answer is None:
        return ()
    order = [_INITIALISES, _WATCHES, _ROUTES]
    if isinstance(case.found, Node) and not is_uninitialized(case.found):
        order = [_WATCHES, _INITIALISES, _ROUTES]
    places = {name: place for place, name in enumerate(order)}
    return sorted(case.answer.accounts, key=lambda each: places.get(each.controller, len(places)))


def _calls(case: Case, account: Account) -> Sequence[CallSaid]:
    """The calls that a controller makes about the object, listings for all of them included."""
    assert case.answer is not None
    is_of_routes = account.controller == _ROUTES
    every = sorted(
        (*case.answer.general, *case.answer.calls), key=lambda each: each.ago_s, reverse=True
    )
    return [each for each in every if ("route" in each.verb) is is_of_routes]


def _held(case: Case) -> str:
    assert case.answer is not None
    reasons: Iterator[str] = (each.reason for each in case.answer.held)
    return next((_HELD[each] for each in reasons if each in _HELD), "")


def _is_routine(account: Account) -> bool:
    """Whether its plan is what it does all the time."""
    return account.controller == _WATCHES and account.last is not None
