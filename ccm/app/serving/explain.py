"""`/explain?kind=node&name=NAME`: what this daemon knows about one object, for `kube-ccm explain`.

A Service or Machine is named `NAMESPACE/NAME`. Who asks needs the right to `get` the path. Nothing
is asked of the cluster or the cloud for it, and nothing changes by it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ccm.app.options import Options
from ccm.app.serving.health import Vitals
from ccm.base import clock, redact
from ccm.cloud.calls import history
from ccm.runtime.account import Account, Answer, CallSaid, said
from ccm.runtime.deletions import Held
from ccm.serving.http import JSON, Handler, Request, Response, text

KINDS = (history.NODE, history.SERVICE, history.MACHINE, "machineset", "machinedeployment")

_HELD_OF = {
    history.NODE: ("Node", "Route"),
    history.SERVICE: ("Service",),
}
"""Kind of object -> kinds of deletions that have to do with it, as the record names them."""

_GENERAL = {
    history.NODE: ("list_instances", "list_routes"),
    history.SERVICE: ("list_load_balancers",),
}
"""Kind of object -> calls about no single object that matter to it."""

_USAGE = (
    "say which object: /explain?kind=node&name=NAME, or kind=service, kind=machine, "
    "kind=machineset or kind=machinedeployment with name=NAMESPACE/NAME\n"
)


def page(options: Options, vitals: Vitals) -> Handler:
    """The page that tells about one object."""

    async def answer(request: Request) -> Response:
        kind, name = request.query.get("kind", ""), request.query.get("name", "")
        if kind not in KINDS or not name:
            return text(_USAGE, 400)
        found = about(kind, name, options, vitals)
        return Response(body=msgspec.json.encode(found), content_type=JSON)

    return answer


def about(kind: str, name: str, options: Options, vitals: Vitals) -> Answer:
    """All that is known about an object."""
    handle = vitals.handle
    accounts = [
        msgspec.structs.replace(account, controller=controller)
        for controller, work in vitals.at_work.items()
        if (account := work.account(kind, name)) is not None
    ]
    return Answer(
        kind=kind,
        name=name,
        provider=options.cloud_provider,
        leads=_leads(vitals),
        lease="; ".join(elector.trouble for elector in vitals.electors.values() if elector.trouble),
        opening=redact.words(vitals.opening),
        trouble=history.text_of(handle.trouble.error) if handle and handle.trouble else "",
        api="; ".join(_unfollowed(vitals)),
        accounts=accounts,
        absent={
            controller: redact.words(finding.detail)
            for controller, finding in vitals.controllers.items()
            if finding.detail
        },
        held=[
            each for of in _HELD_OF.get(kind, ()) for each in _held(vitals, of) if each.key == name
        ],
        calls=_calls(kind, name, vitals, accounts),
        general=_general(kind, vitals),
    )


def _leads(vitals: Vitals) -> bool:
    if not vitals.electors:
        return vitals.informers is not None
    return any(elector.is_leader for elector in vitals.electors.values())


def _held(vitals: Vitals, kind: str) -> list[Held]:
    return list(vitals.deletions.held(kind)) if vitals.deletions is not None else []


def _calls(kind: str, name: str, vitals: Vitals, accounts: Iterable[Account]) -> list[CallSaid]:
    if vitals.handle is None:
        return []
    calls = vitals.handle.history
    found = list(calls.of((kind, name)))
    for key in dict.fromkeys(key for account in accounts for key in account.about):
        found += calls.of(key)
    node = vitals.node(name) if kind == history.NODE else None
    if node is not None and node.provider_id:
        found += calls.of((history.PROVIDER_ID, node.provider_id))
    return said(sorted(found, key=lambda call: call.began))


def _general(kind: str, vitals: Vitals) -> list[CallSaid]:
    if vitals.handle is None:
        return []
    calls = vitals.handle.history.of(history.NOBODY)
    return said(call for call in calls if call.verb in _GENERAL.get(kind, ()))


def _unfollowed(vitals: Vitals) -> list[str]:
    """What of the cluster is not followed now."""
    if vitals.informers is None:
        return []
    now = clock.monotonic()
    return [
        f"{informer.resource} cannot be followed for {now - since:.0f} s"
        for informer in vitals.informers.all
        if (since := informer.trouble_since) is not None
    ]
