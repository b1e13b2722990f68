"""Finds the cause of an object's state, from the object, its events and the leader's response.

The first rule that applies gives the cause. The rules are, in order: missing CRD, ownership by
another manager, a daemon that does not work, deleted object, controllers, status of the object. A
controller is the cause if its reconcile takes long, is blocked, has failed or waits. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ccm.app.machineapis import GARDENER, MachineApi
from ccm.app.options.controllers import canonical
from ccm.machines import reasons, rolloutstatus
from ccm.model import Event, Node, Service, names
from ccm.model.machines import Machine, MachineDeployment, MachineSet, OperationState, Phase
from ccm.model.node import has_shutdown_taint, is_uninitialized
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.runtime.object_status import ControllerStatus, ExplainResponse

NODE, SERVICE, MACHINE = "node", "service", "machine"
SET, DEPLOYMENT = "machineset", "machinedeployment"

Object = Node | Service | Machine | MachineSet | MachineDeployment

SLOW_S = 3.0
"""Seconds after which a reconcile that still runs counts as the cause."""

_CONTROLLERS = {
    NODE: "cloud-node-controller",
    SERVICE: "service-lb-controller",
}
"""Kind of object -> controller that works on the object; controllers of machine objects have the
kind as alias."""

_WATCHES = "cloud-node-lifecycle-controller"
_ROUTES = "node-route-controller"

_FOREIGN = {
    NODE: "nothing to do if another manager owns the node; else correct the node, or "
    "--node-selector",
    SERVICE: "nothing to do if another controller serves that class; else set "
    "--load-balancer-classes",
}

_CREDENTIALS = (
    "update the credentials in --cloud-config (Secret cloud-config), or for a Machine in the "
    "Secret of its MachineClass or providerSpec; the daemon reloads them and retries at once"
)
_CORRECT = (
    "correct the object (kube-ccm providers NAME lists annotations), or for a Machine the "
    "providerSpec of its MachineClass or MachineDeployment; the daemon retries on each change"
)
_API = "check the API server, and the network and permissions of the daemon"

_ADVICE = {
    "NotFound": "compare the names in cluster and cloud (kube-ccm doctor shows instances without a "
    "node); remove a spec.providerID that names no VM",
    "AlreadyExists": "delete or rename the conflicting resource in the cloud",
    "InvalidArgument": _CORRECT,
    "OutOfRange": _CORRECT,
    "FailedPrecondition": "fix the problem that the message describes",
    "Unauthenticated": _CREDENTIALS,
    "PermissionDenied": "grant the account of the credentials the permission in the message",
    "ResourceExhausted": "raise the quota, or delete unused resources; the daemon retries",
    "Aborted": "nothing to do unless it persists: a hanging call blocks the object until a restart",
    "Unimplemented": "use another provider, or disable the controller with --controllers",
    "ImplementedElsewhere": "nothing to do if the controller in the message is running",
    "Forbidden": "grant the permission in the message: apply manifests/rbac.yaml of this version",
    "Invalid": "see the message: an admission webhook may have rejected the write",
    "Conflict": "find the other writer: kubectl get -o yaml --show-managed-fields",
}
"""Class of a cloud or API error -> advice."""

_OTHER = "check the message, the cloud and the daemon's log; the daemon retries"

_CONDITIONS = {
    reasons.CONDITION_FROZEN: "find why there are so many machines (kubectl get machines), or set "
    f"the annotation {GARDENER.codec.names.unfreeze}",
    reasons.CONDITION_SLOWED: "correct the template, the class or its Secret, or set the "
    f"annotation {GARDENER.codec.names.unfreeze}",
    reasons.CONDITION_REPLICA_FAILURE: "fix the problem that the message describes",
}
"""Conditions that block a MachineSet or MachineDeployment -> advice."""

_MACHINES = (
    "run kubectl get machines{group}, and kube-ccm explain machine{group} for each that is not "
    "Running"
)

_JOIN = (
    "nothing to do while the VM boots; otherwise read the console of the VM: user data, network, "
    "API server"
)

_USER_DATA = (
    "nothing to do if the MachineDeployment is new; otherwise check the operating-system-manager, "
    "which writes the Secret"
)

_ALLOW = (
    "kube-ccm doctor lists blocked deletions; restore the objects, or allow their deletion with "
    f"the annotation {names.ANNOTATION_ALLOW_DELETION}=true on the Node, the CRD, or the ConfigMap "
    "kube-ccm-deletions in the namespace of the Lease"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """Reason why no daemon responded.

    Attributes:
        why: the reason, a clause without a full stop.
        advice: what to do next.
        is_leaderless: whether there is no leader; False = there may be a leader, but it did not
            respond.
    """

    why: str
    advice: str
    is_leaderless: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFacts:
    """All facts about one object.

    Attributes:
        kind: `NODE`, `SERVICE`, `MACHINE`, `SET` or `DEPLOYMENT`.
        name: `NAMESPACE/NAME`; for a node, its name.
        obj: the object in the cluster; None = the object does not exist.
        api: API group of a machine object.
        is_served: whether the API server serves the object's resource.
        answer: the daemon's response; None = no daemon responded.
        no_answer: why no daemon responded; None = a daemon responded.
        warnings: Warning events about the object, the newest last.
    """

    kind: str
    name: str
    obj: Object | None
    api: MachineApi = GARDENER
    is_served: bool = True
    answer: ExplainResponse | None = None
    no_answer: NoAnswer | None = None
    warnings: Sequence[Event] = ()

    @property
    def controller(self) -> str:
        """Name of the controller that works on the object."""
        return _CONTROLLERS.get(self.kind) or canonical(f"{self.api.codec.prefix}{self.kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Result of `find_cause`.

    Attributes:
        cause: cause of the object's state, in one line.
        advice: what to do next; may be empty.
        is_healthy: whether nothing needs to be done.
    """

    cause: str
    advice: tuple[str, ...] = ()
    is_healthy: bool = False


def find_cause(subject: ObjectFacts) -> Explanation:
    is_of = state(subject)
    if (hindrance := next(_hindrances(subject), None)) is not None:
        return Explanation(cause=f"{is_of}: {hindrance[0]}", advice=hindrance[1:])
    for rule in (_gone, _of_controllers, _of_object):
        if (verdict := rule(subject)) is not None:
            return verdict
    pending = next((account for account in _accounts(subject) if account.plan), None)
    if pending is not None:
        return Explanation(cause=f"{is_of}: the daemon is about to {pending.plan}{_then(pending)}")
    return Explanation(cause=f"{is_of}, and the daemon has nothing to do", is_healthy=True)


def _hindrances(subject: ObjectFacts) -> Iterator[tuple[str, str]]:
    """Yield causes outside the object, as pairs of cause and advice."""
    answer, silence = subject.answer, subject.no_answer
    if not subject.is_served:
        yield (
            f"the CRD of {subject.kind}s is not installed",
            f"kubectl apply -f {subject.api.codec.manifest}; the daemon retries automatically",
        )
    why = next((candidate.foreign for candidate in _accounts(subject) if candidate.foreign), "")
    if why and subject.obj is not None:
        advice = (
            "nothing to do if another program manages the object; otherwise correct it, or set "
            f"--{subject.api.codec.namespace_flag}"
        )
        yield f"not managed by this daemon: {why}", _FOREIGN.get(subject.kind, advice)
    if answer is None:
        assert silence is not None
        if silence.is_leaderless:
            yield f"there is no leader: {silence.why}", silence.advice
        why = f"the reason is unknown, because querying the leader failed: {silence.why}"
        yield why, silence.advice
        return
    if answer.opening:
        yield (
            answer.opening,
            "fix the problem that the message describes; kube-ccm doctor checks more",
        )
    elif not answer.leads:
        yield (
            "the queried daemon is on standby and has no state of the object",
            "query the leader: omit --address",
        )
    elif answer.lease or answer.api:
        yield f"requests of the daemon to the API server fail: {answer.lease or answer.api}", _API
    needed, wanted = subject.controller, subject.obj
    if wanted is None or (isinstance(wanted, Node) and not is_uninitialized(wanted)):
        return
    if all(account.controller != needed for account in answer.accounts):
        why = answer.absent.get(needed, "not running: it waits to start, or --controllers omits it")
        yield (
            f"controller {needed} is {why}",
            "enable the controller (--controllers), and use a provider that supports it",
        )


def _gone(subject: ObjectFacts) -> Explanation | None:
    answer = subject.answer
    if subject.obj is not None or answer is None:
        return None
    if answer.held:
        held = f"{state(subject)}: deletion of its cloud resources blocked: {answer.held[0].reason}"
        return Explanation(cause=held, advice=(_ALLOW,))
    busy = [account for account in answer.accounts if account.plan]
    if any(account.last is not None and account.last.kind for account in busy):
        return None
    if busy:
        text = f"{state(subject)}: the daemon is about to {busy[0].plan}{_then(busy[0])}"
        return Explanation(cause=text)
    return Explanation(cause=f"{state(subject)}, and nothing is left to clean up", is_healthy=True)


def _of_controllers(subject: ObjectFacts) -> Explanation | None:
    for account in _accounts(subject):
        if (lasts_s := account.in_work_s or 0.0) >= SLOW_S:
            return Explanation(
                cause=f"{state(subject)}: reconciling for {span(lasts_s)}: a call to the cloud or "
                "the API server is slow or rate-limited",
                advice=("check the cloud and the API server; a call that times out is retried",),
            )
        if account.blocked:
            return Explanation(cause=f"{state(subject)}: {account.blocked}", advice=(_ALLOW,))
        last = account.last
        if last is not None and last.kind:
            is_failure = account.failures > 1 and last.kind != "RetryAfter"
            again = f", {account.failures} times in a row" if is_failure else ""
            cause = f"{last.kind}: {last.text}, {_ago(last.ago_s)}{again}{_then(account)}"
            advice = _ADVICE.get(last.kind, _OTHER)
            obj = subject.obj
            is_served = isinstance(obj, Service) and obj.ingress and not obj.is_deleting
            joint = ", but its last change failed" if is_served else ""
            return Explanation(cause=f"{state(subject)}{joint}: {cause}", advice=(advice,))
        if account.awaited_secret:
            text = f"{state(subject)}: waiting for the Secret {account.awaited_secret}"
            return Explanation(cause=f"{text}{_then(account)}", advice=(_USER_DATA,))
        if last is not None and last.not_yet:
            text = f"{state(subject)}: waiting for the cloud or for caches{_then(account)}"
            return Explanation(
                cause=text, advice=("nothing to do if the object is new: the daemon retries",)
            )
    return None


def _of_object(subject: ObjectFacts) -> Explanation | None:
    """Return the explanation from status and conditions.

    None: the object is healthy, or it is a Node or Service.
    """
    match obj := subject.obj:
        case Machine():
            last = obj.status
            if obj.counts_as_ready and last.state != OperationState.FAILED.value:
                return None
            code, text = subject.api.codec.failure(obj)
            cause = ": ".join(filter(None, (code, text))) or "the status has no cause"
            advice = _ADVICE.get(last.code, _events_of(subject))
            if obj.phase is Phase.PENDING and last.state != OperationState.FAILED.value:
                cause, advice = "its node has not joined, or is not ready", _JOIN
        case MachineSet() | MachineDeployment():
            known = {condition.type: condition for condition in obj.status.conditions}
            bad = [name for name in _CONDITIONS if name in known and known[name].status == "True"]
            if bad:
                cause, advice = f"{bad[0]}: {known[bad[0]].message}", _CONDITIONS[bad[0]]
            elif isinstance(obj, MachineSet):
                ready, replicas = obj.status.ready, obj.replicas
                if ready == replicas:
                    return None
                cause, advice = f"{ready} of {replicas} machines are ready", _machines_of(subject)
            else:
                progress = rolloutstatus.rollout_progress(obj)
                if progress.done and not progress.failed:
                    return None
                cause, advice = progress.text, _machines_of(subject)
        case _:
            return None
    return Explanation(cause=f"{state(subject)}: {cause}", advice=(advice,))


def _machines_of(subject: ObjectFacts) -> str:
    api = subject.api
    return _MACHINES.format(group=f".{api.group}" if api.codec.prefix else "")


def _events_of(subject: ObjectFacts) -> str:
    namespace, _, name = subject.name.partition("/")
    kind = f"machine.{subject.api.group}"
    return f"`kubectl -n {namespace} describe {kind} {name}` shows its events"


def state(subject: ObjectFacts) -> str:
    """Return the state of the object in the cluster: a clause without a full stop."""
    obj, name = subject.obj, subject.name
    match obj:
        case None:
            return f"{subject.kind} {name} does not exist"
        case Node() if is_uninitialized(obj):
            return f"{name} is not initialised"
        case Node():
            vm = ", its VM is switched off" if has_shutdown_taint(obj) else ""
            return f"{name} is {'' if obj.ready == names.STATUS_TRUE else 'not '}ready{vm}"
        case _ if obj.is_deleting:
            return f"{name} is being deleted"
        case Machine():
            vm = f"VM {obj.provider_id}" if obj.provider_id else "no VM"
            return f"{name} has {vm}, phase {obj.phase.value or 'none'}"
        case MachineSet() | MachineDeployment():
            return f"{name} has {obj.status.replicas} of {obj.replicas} machines"
        case Service() if obj.type != TYPE_LOAD_BALANCER:
            return f"{name} needs no load balancer: its type is {obj.type or 'ClusterIP'}"
    where = ", ".join(entry.ip or entry.hostname for entry in obj.ingress)
    return f"{name} is served at {where}" if where else f"{name} has no load balancer"


def _then(account: ControllerStatus) -> str:
    if account.in_work_s is not None:
        return "; reconciling now"
    if account.next_s is None:
        return "; next try when the object changes"
    return f"; next try in {span(account.next_s)}" if account.next_s else "; next try now"


def _accounts(subject: ObjectFacts) -> Sequence[ControllerStatus]:
    """Return the object's status in each controller, the most relevant controller first."""
    if subject.answer is None:
        return ()
    first = subject.controller
    if isinstance(subject.obj, Node) and not is_uninitialized(subject.obj):
        first = _WATCHES
    return sorted(subject.answer.accounts, key=lambda account: account.controller != first)


# --- rendering ----------------------------------------------------------------------------------


def document(subject: ObjectFacts, verdict: Explanation) -> dict[str, object]:
    """Return the explanation and its facts, for the JSON output."""
    return {
        "kind": subject.kind,
        **({"group": subject.api.group} if subject.kind not in _CONTROLLERS else {}),
        "name": subject.name,
        "cause": verdict.cause,
        "isWell": verdict.is_healthy,
        "exists": subject.obj is not None,
        "advice": verdict.advice,
        "daemon": subject.answer,
        "silence": subject.no_answer.why if subject.no_answer is not None else "",
    }


def lines(subject: ObjectFacts, verdict: Explanation) -> Iterator[str]:
    """Yield the lines of the text output: the cause, the facts, then the advice."""
    yield verdict.cause
    answer = subject.answer
    if answer is not None:
        provider = f" (provider {answer.provider})" if answer.provider else ""
        is_foreign = any(account.foreign for account in answer.accounts)
        yield f"  owner: {'another manager' if is_foreign else 'this daemon'}{provider}"
        for account in answer.accounts:
            yield f"  {account.controller}:"
            yield from (f"    {line}" for line in _account(account))
        yield from (
            f"  {name}: {why}"
            for name, why in answer.absent.items()
            if subject.kind == NODE or name != _ROUTES  # no other object has routes
        )
        yield from (
            f"  deletion blocked: {held.reason}, since {held.since}" for held in answer.held
        )
        yield from (f"  journal: {record}" for record in answer.journal)
    for event in subject.warnings[-1:]:
        yield f"  last warning: {event.reason}: {event.message}, at {event.last_timestamp}"
    yield from (f"  next: {advice}" for advice in verdict.advice)


def _account(account: ControllerStatus) -> Iterator[str]:
    if account.plan:
        yield f"plan: {account.plan}"
    if (last := account.last) is not None:
        failed = f"{last.kind}: {last.text}" if last.kind else ""
        lasts = f", failing for {span(last.since_s)}" if failed and last.since_s >= 1 else ""
        outcome = failed or ("not ready yet" if last.not_yet else "succeeded")
        yield f"last reconcile: {_ago(last.ago_s)}, {outcome}{lasts}"
    if account.in_work_s is not None:
        yield f"reconciling for {span(account.in_work_s)}"
    elif account.next_s is not None:
        yield f"next reconcile: {f'in {span(account.next_s)}' if account.next_s else 'now'}"


def span(seconds: float) -> str:
    """Return a duration with one unit, such as `20 s`, `5 min` or `3 d`."""
    if seconds < 0.95:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} d"


def _ago(seconds: float) -> str:
    return f"{span(seconds)} ago" if seconds >= 1 else "just now"
