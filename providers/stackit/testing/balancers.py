"""What the calls about load balancers and their credentials do."""

from __future__ import annotations

import re
from copy import deepcopy

from . import state
from .state import Answer, ApiError, Call, Cloud, Thing

NAME = re.compile(r"[0-9a-z](?:(?:[0-9a-z]|-){0,61}[0-9a-z])?")
TARGET = re.compile(r"[0-9a-zA-Z](?:(?:[0-9a-zA-Z]|-){0,61}[0-9a-zA-Z])?")
LABEL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?")
PLANS = ("p10", "p50", "p250", "p750")

_GIVEN = ("labels", "networks", "planId", "disableTargetSecurityGroupAssignment")


def _check(cloud: Cloud, order: Thing) -> None:
    if not NAME.fullmatch(str(order.get("name"))):
        raise state.invalid("name", "must be small letters, digits and dashes, 63 of them")
    if order.get("planId") not in PLANS:
        raise state.invalid("planId", "is not known")
    for key, value in (order.get("labels") or {}).items():
        if not LABEL.fullmatch(key) or (value and not LABEL.fullmatch(value)):
            raise state.invalid("labels", f"{key}: {value} is no label")
    pools = {one["name"] for one in order.get("targetPools") or ()}
    if any(one["targetPool"] not in pools for one in order.get("listeners") or ()):
        raise state.invalid("listeners", "name a target pool that is not there")
    heard = [(one["port"], "UDP" in one["protocol"]) for one in order.get("listeners") or ()]
    if len(set(heard)) < len(heard) or len(pools) < len(order.get("targetPools") or ()):
        raise state.invalid("listeners", "or target pools are there twice")
    for pool in order.get("targetPools") or ():
        _check_targets(cloud, pool)
    ref = _ref(order)
    if ref and ref not in cloud.credentials:
        raise state.invalid("options.observability", f"credentials {ref} do not exist")


def _check_targets(cloud: Cloud, pool: Thing) -> None:
    for one in pool.get("targets") or ():
        if one["ip"] in cloud.unreachable:
            raise state.invalid("targets", f"{one['ip']} is not in the network")
        if not TARGET.fullmatch(one["displayName"]):
            raise state.invalid("targets", f"{one['displayName']} is no name")


def _ref(made: Thing) -> str:
    metrics = ((made.get("options") or {}).get("observability") or {}).get("metrics") or {}
    return str(metrics.get("credentialsRef") or "")


def create(cloud: Cloud, order: Thing) -> Thing:
    """Order one; it has no address before it is ready."""
    _check(cloud, order)
    name = order["name"]
    if name in cloud.balancers:
        raise ApiError("conflict", f"load balancer {name} exists already")
    if len(cloud.balancers) >= cloud.settings.balancers:
        raise ApiError("too_many_requests", "quota of load balancers exceeded")
    made: Thing = {
        "name": name,
        "region": state.REGION,
        "status": "STATUS_PENDING",
        "errors": [],
        "version": f"lb-{cloud.number()}",
        "labels": {},
    }
    _take(made, order)
    cloud.balancers[name] = made
    number = cloud.number()

    def ready() -> None:
        if made["status"] != "STATUS_PENDING":
            return
        made["status"] = "STATUS_READY"
        made["privateAddress"] = f"10.250.{number >> 8 & 255}.{number & 255}"
        if not made["options"]["privateNetworkOnly"] and not made.get("externalAddress"):
            made["externalAddress"] = f"198.51.{100 + (number >> 8)}.{number & 255}"

    cloud.later(cloud.settings.balancer_s, ready)
    return made


def _take(made: Thing, order: Thing) -> None:
    """All that an order says."""
    order = deepcopy(order)
    made.update({key: order[key] for key in _GIVEN if key in order})
    made["listeners"] = [
        {**one, "name": f"{made['name']}-{one['port']}"} for one in order.get("listeners") or ()
    ]
    made["targetPools"] = order.get("targetPools") or []
    options = order.get("options") or {}
    made["options"] = {
        "privateNetworkOnly": False,
        "ephemeralAddress": False,
        **options,
    }
    if order.get("externalAddress"):
        made["externalAddress"] = order["externalAddress"]


def replace(cloud: Cloud, call: Call) -> Answer:
    """Everything anew, unless somebody else was faster, or it is for ever."""
    name, order = call.path["name"], call.body
    made = state.get(cloud.balancers, name, "load balancer")
    if order.get("version") != made["version"]:
        raise ApiError("conflict", f"the version of {name} is {made['version']}")
    _check(cloud, {**order, "name": name})
    options, held = order.get("options") or {}, made["options"]
    if bool(options.get("privateNetworkOnly")) != held["privateNetworkOnly"]:
        raise state.invalid("options.privateNetworkOnly", "cannot be changed")
    stays = held["ephemeralAddress"] and options.get("ephemeralAddress")
    if stays and order.get("externalAddress"):
        raise state.invalid("externalAddress", "is ephemeral")
    if order.get("externalAddress") not in (None, made.get("externalAddress")):
        raise state.invalid("externalAddress", "cannot be changed")
    if options.get("ephemeralAddress") and not held["ephemeralAddress"]:
        raise state.invalid("options.ephemeralAddress", "cannot be changed")
    if order.get("networks") != made["networks"]:
        raise state.invalid("networks", "cannot be changed")
    _take(made, order)
    made["version"] = f"lb-{cloud.number()}"
    return 200, made


def replace_pool(cloud: Cloud, call: Call) -> Answer:
    """A pool anew."""
    name, pool_name, order = call.path["name"], call.path["targetPoolName"], call.body
    made = state.get(cloud.balancers, name, "load balancer")
    _check_targets(cloud, order)
    for at, pool in enumerate(made["targetPools"]):
        if pool["name"] == pool_name:
            made["targetPools"][at] = deepcopy(order)
            made["version"] = f"lb-{cloud.number()}"
            return 200, order
    raise ApiError("not_found", f"target pool {pool_name} not found")


def delete(cloud: Cloud, call: Call) -> Answer:
    """Begin to take one away; one that is not there is as good."""
    name = call.path["name"]
    made = cloud.balancers.get(name)
    if made is None:
        return 200, {}
    if name in cloud.protected:
        raise ApiError("conflict", f"load balancer {name} cannot be deleted just now")
    made["status"] = "STATUS_TERMINATING"

    def gone() -> None:
        cloud.balancers.pop(name, None)

    cloud.later(cloud.settings.balancer_removal_s, gone)
    return 200, {}


def index(cloud: Cloud, call: Call) -> Answer:
    """Some of them, by name; the ID of the next page is the last name."""
    size = min(int(call.query.get("pageSize") or 100), cloud.settings.page_size)
    after = call.query.get("pageId", "")
    names = sorted(name for name in cloud.balancers if name > after)
    found: Thing = {"loadBalancers": [cloud.balancers[name] for name in names[:size]]}
    if len(names) > size:
        found["nextPageId"] = names[size - 1]
    return 200, found


def create_credentials(cloud: Cloud, order: Thing) -> Thing:
    """Put some down."""
    ref = f"credentials-{cloud.number()}"
    cloud.credentials[ref] = {"credentialsRef": ref, "region": state.REGION}
    return change_credentials(cloud, ref, order)


def change_credentials(cloud: Cloud, ref: str, order: Thing) -> Thing:
    """Others in their place."""
    found = state.get(cloud.credentials, ref, "credentials")
    found.update(displayName=order["displayName"], username=order["username"])
    cloud.passwords[ref] = order["password"]
    return found


def order_credentials(cloud: Cloud, call: Call) -> Answer:
    """Put some down."""
    return 200, {"credential": create_credentials(cloud, call.body)}


def replace_credentials(cloud: Cloud, call: Call) -> Answer:
    """Others in their place."""
    found = change_credentials(cloud, call.path["credentialsRef"], call.body)
    return 200, {"credential": found}


def delete_credentials(cloud: Cloud, call: Call) -> Answer:
    """Take them away, unless a load balancer refers to them."""
    ref = call.path["credentialsRef"]
    state.get(cloud.credentials, ref, "credentials")
    if any(_ref(one) == ref for one in cloud.balancers.values()):
        raise ApiError("bad_request", f"credentials {ref} are in use")
    del cloud.credentials[ref]
    del cloud.passwords[ref]
    return 200, {}
