"""Handlers for load balancers and their credentials."""

from __future__ import annotations

import re
from copy import deepcopy

from . import state
from .state import Answer, ApiError, Call, Cloud, Resource

NAME = re.compile(r"[0-9a-z](?:(?:[0-9a-z]|-){0,61}[0-9a-z])?")
TARGET = re.compile(r"[0-9a-zA-Z](?:(?:[0-9a-zA-Z]|-){0,61}[0-9a-zA-Z])?")
LABEL = re.compile(r"[a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?")
PLANS = ("p10", "p50", "p250", "p750")

_COPIED_FIELDS = ("labels", "networks", "planId", "disableTargetSecurityGroupAssignment")


def _check(cloud: Cloud, order: Resource) -> None:
    if not NAME.fullmatch(str(order.get("name"))):
        raise state.invalid("name", "must be at most 63 lower-case letters, digits and dashes")
    if order.get("planId") not in PLANS:
        raise state.invalid("planId", "unknown plan")
    for key, value in (order.get("labels") or {}).items():
        if not LABEL.fullmatch(key) or (value and not LABEL.fullmatch(value)):
            raise state.invalid("labels", f"{key}: {value} is not a valid label")
    pools = {entry["name"] for entry in order.get("targetPools") or ()}
    if any(entry["targetPool"] not in pools for entry in order.get("listeners") or ()):
        raise state.invalid("listeners", "name a target pool that does not exist")
    listened = [
        (entry["port"], "UDP" in entry["protocol"]) for entry in order.get("listeners") or ()
    ]
    if len(set(listened)) < len(listened) or len(pools) < len(order.get("targetPools") or ()):
        raise state.invalid("listeners", "duplicate port or target pool")
    for pool in order.get("targetPools") or ():
        _check_targets(cloud, pool)
    ref = _credentials_ref(order)
    if ref and ref not in cloud.credentials:
        raise state.invalid("options.observability", f"credentials {ref} do not exist")


def _check_targets(cloud: Cloud, pool: Resource) -> None:
    for target in pool.get("targets") or ():
        if target["ip"] in cloud.unreachable:
            raise state.invalid("targets", f"{target['ip']} is not in the network")
        if not TARGET.fullmatch(target["displayName"]):
            raise state.invalid("targets", f"{target['displayName']} is not a name")


def _credentials_ref(balancer: Resource) -> str:
    metrics = ((balancer.get("options") or {}).get("observability") or {}).get("metrics") or {}
    return str(metrics.get("credentialsRef") or "")


def create(cloud: Cloud, order: Resource) -> Resource:
    """Create a load balancer; it has no address before it is ready."""
    _check(cloud, order)
    name = order["name"]
    if name in cloud.balancers:
        raise ApiError("conflict", f"load balancer {name} exists already")
    if len(cloud.balancers) >= cloud.settings.balancers:
        raise ApiError("too_many_requests", "quota of load balancers exceeded")
    balancer: Resource = {
        "name": name,
        "region": state.REGION,
        "status": "STATUS_PENDING",
        "errors": [],
        "version": f"lb-{cloud.number()}",
        "labels": {},
    }
    _apply_order(balancer, order)
    cloud.balancers[name] = balancer
    number = cloud.number()

    def ready() -> None:
        if balancer["status"] != "STATUS_PENDING":
            return
        balancer["status"] = "STATUS_READY"
        balancer["privateAddress"] = f"10.250.{number >> 8 & 255}.{number & 255}"
        if not balancer["options"]["privateNetworkOnly"] and not balancer.get("externalAddress"):
            balancer["externalAddress"] = f"198.51.{100 + (number >> 8)}.{number & 255}"

    cloud.schedule(cloud.settings.balancer_s, ready)
    return balancer


def _apply_order(balancer: Resource, order: Resource) -> None:
    """Copy the fields of a request body into a load balancer."""
    order = deepcopy(order)
    balancer.update({key: order[key] for key in _COPIED_FIELDS if key in order})
    balancer["listeners"] = [
        {**listener, "name": f"{balancer['name']}-{listener['port']}"}
        for listener in order.get("listeners") or ()
    ]
    balancer["targetPools"] = order.get("targetPools") or []
    options = order.get("options") or {}
    balancer["options"] = {"privateNetworkOnly": False, "ephemeralAddress": False, **options}
    if order.get("externalAddress"):
        balancer["externalAddress"] = order["externalAddress"]


def replace(cloud: Cloud, call: Call) -> Answer:
    """Replace a load balancer; the version must match, and some fields are immutable."""
    name, order = call.path["name"], call.body
    balancer = state.get(cloud.balancers, name, "load balancer")
    if order.get("version") != balancer["version"]:
        raise ApiError("conflict", f"the version of {name} is {balancer['version']}")
    _check(cloud, {**order, "name": name})
    options, held = order.get("options") or {}, balancer["options"]
    if bool(options.get("privateNetworkOnly")) != held["privateNetworkOnly"]:
        raise state.invalid("options.privateNetworkOnly", "cannot be changed")
    stays = held["ephemeralAddress"] and options.get("ephemeralAddress")
    if stays and order.get("externalAddress"):
        raise state.invalid("externalAddress", "is ephemeral")
    if order.get("externalAddress") not in (None, balancer.get("externalAddress")):
        raise state.invalid("externalAddress", "cannot be changed")
    if options.get("ephemeralAddress") and not held["ephemeralAddress"]:
        raise state.invalid("options.ephemeralAddress", "cannot be changed")
    if order.get("networks") != balancer["networks"]:
        raise state.invalid("networks", "cannot be changed")
    _apply_order(balancer, order)
    balancer["version"] = f"lb-{cloud.number()}"
    return 200, balancer


def replace_pool(cloud: Cloud, call: Call) -> Answer:
    """Replace a target pool."""
    name, pool_name, order = call.path["name"], call.path["targetPoolName"], call.body
    balancer = state.get(cloud.balancers, name, "load balancer")
    _check_targets(cloud, order)
    for at, pool in enumerate(balancer["targetPools"]):
        if pool["name"] == pool_name:
            balancer["targetPools"][at] = deepcopy(order)
            balancer["version"] = f"lb-{cloud.number()}"
            return 200, order
    raise ApiError("not_found", f"target pool {pool_name} not found")


def delete(cloud: Cloud, call: Call) -> Answer:
    """Start the deletion of a load balancer; a missing one is not an error."""
    name = call.path["name"]
    balancer = cloud.balancers.get(name)
    if balancer is None:
        return 200, {}
    if name in cloud.protected:
        raise ApiError("conflict", f"load balancer {name} cannot be deleted now")
    balancer["status"] = "STATUS_TERMINATING"

    def gone() -> None:
        cloud.balancers.pop(name, None)

    cloud.schedule(cloud.settings.balancer_removal_s, gone)
    return 200, {}


def index(cloud: Cloud, call: Call) -> Answer:
    """Return a page of load balancers, sorted; the last name is the ID of the next page."""
    size = min(int(call.query.get("pageSize") or 100), cloud.settings.page_size)
    after = call.query.get("pageId", "")
    names = sorted(name for name in cloud.balancers if name > after)
    page: Resource = {"loadBalancers": [cloud.balancers[name] for name in names[:size]]}
    if len(names) > size:
        page["nextPageId"] = names[size - 1]
    return 200, page


def create_credentials(cloud: Cloud, order: Resource) -> Resource:
    ref = f"credentials-{cloud.number()}"
    cloud.credentials[ref] = {"credentialsRef": ref, "region": state.REGION}
    return change_credentials(cloud, ref, order)


def change_credentials(cloud: Cloud, ref: str, order: Resource) -> Resource:
    """Replace name, user and password of credentials."""
    credentials = state.get(cloud.credentials, ref, "credentials")
    credentials.update(displayName=order["displayName"], username=order["username"])
    cloud.passwords[ref] = order["password"]
    return credentials


def order_credentials(cloud: Cloud, call: Call) -> Answer:
    """Create credentials."""
    return 200, {"credential": create_credentials(cloud, call.body)}


def replace_credentials(cloud: Cloud, call: Call) -> Answer:
    """Replace credentials."""
    credentials = change_credentials(cloud, call.path["credentialsRef"], call.body)
    return 200, {"credential": credentials}


def delete_credentials(cloud: Cloud, call: Call) -> Answer:
    """Delete credentials unless a load balancer uses them."""
    ref = call.path["credentialsRef"]
    state.get(cloud.credentials, ref, "credentials")
    if any(_credentials_ref(balancer) == ref for balancer in cloud.balancers.values()):
        raise ApiError("bad_request", f"credentials {ref} are in use")
    del cloud.credentials[ref]
    del cloud.passwords[ref]
    return 200, {}
