"""What people are told about a Service and its load balancer."""

from __future__ import annotations

from collections.abc import Collection

from ccm.controllers.service import plan
from ccm.controllers.service.plan import Action
from ccm.controllers.service.record import Record
from ccm.model import Service
from ccm.model.service import TYPE_LOAD_BALANCER
from ccm.runtime.account import Facts

_PLANS = {
    Action.VERIFY: "compare its load balancer with what the cloud lists",
    Action.ENSURE: "have the cloud create or change its load balancer",
    Action.UPDATE: "give its load balancer other members",
    Action.REPAIR: "put back finalizer and status, which somebody took away",
    Action.REMOVE: "remove its load balancer (release an adopted one), then finalizer and status",
    Action.REMOVE_VANISHED: "remove the load balancer that is left of it",
    Action.WAIT: "look again when its members are known",
}


def explain(
    service: Service | None, record: Record | None, action: Action, classes: Collection[str]
) -> Facts:
    """How a Service stands with its load balancer.

    Args:
        service: as it is now; None: it is gone.
        record: what was done for it; None: nothing by this process.
        action: the one thing to do now.
        classes: load balancer classes that are ours.
    """
    if action is Action.NOTHING and record is not None and record.failing:
        action = Action.ENSURE  # after its back-off
    doing = _PLANS.get(action, "")
    if service is None:
        left = record is not None and record.may_exist
        return Facts(state="gone, its load balancer may be there" if left else "gone", plan=doing)
    if plan.is_foreign(service, classes):
        mine = f" (this daemon's: {', '.join(sorted(classes))})" if classes else ""
        given = service.spec.load_balancer_class
        return Facts(
            state="another's",
            plan=doing,
            foreign=f"it asks for a load balancer of class {given}, which is another controller's"
            f"{mine}",
        )
    if action is Action.WAIT:
        return Facts(
            state="served",
            plan=doing,
            blocked="too many nodes cannot be decoded, so nobody knows its members",
            advice="look at the daemon's log for the nodes that cannot be decoded",
        )
    return Facts(state=_state(service, record), plan=doing)


def _state(service: Service, record: Record | None) -> str:
    if service.is_deleting:
        return "being deleted"
    if service.type != TYPE_LOAD_BALANCER:
        return f"of type {service.type or 'ClusterIP'}, which has no load balancer"
    where = ", ".join(entry.ip or entry.hostname for entry in service.ingress)
    known = f", {record.state.value}" if record is not None else ""
    return f"served at {where}{known}" if where else f"without load balancer{known}"
