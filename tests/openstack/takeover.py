"""Clusters that openstack-cloud-controller-manager has settled: recorded from real services.

`fixtures` has one file for each of `SETTINGS`: the resources of the project and the objects of the
API server, with their IDs. `record` and `write` make it, `read` and `restore` put it into the fake.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ccm.model import names
from providers.openstack import service_annotations as ann
from providers.openstack.security_groups import Rule
from providers.openstack.testing.state import PROJECT, Cloud
from tests.faults import Match
from tests.scenario.harness import (
    NODES,
    Cluster,
    Environment,
    conditions,
    taints,
    wait_for,
)
from tests.scenario.machines import SERVICES
from tests.waiting import DEADLINE_S

Resource = dict[str, Any]
Tables = dict[str, list[Resource]]
"""Table of the fake, or path in the API server -> resources, sorted."""

FOLDER = Path(__file__).parent / "fixtures"

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "groups": {
        "manage-security-groups": "true",
        "create-monitor": "true",
        "lb-method": "LEAST_CONNECTIONS",
        "enable-ingress-hostname": "true",
    },
}
"""Name of a fixture -> keys of section `[LoadBalancer]`, besides the subnet."""

OF_NEUTRON: Mapping[str, str] = {
    "networks": "networks",
    "subnets": "subnets",
    "ports": "ports",
    "routers": "routers",
    "floatingips": "floating_ips",
    "security-groups": "security_groups",
}
"""Kind of resources -> table of the fake."""

OF_OCTAVIA: Mapping[str, str] = {
    "loadbalancers": "balancers",
    "listeners": "listeners",
    "pools": "pools",
    "healthmonitors": "monitors",
}


# --- Services -------------------------------------------------------------------------------------


def _service(
    name: str,
    number: int,
    *ports: tuple[str, int],
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Resource:
    """A Service whose node ports begin at `number`; TCP port 80 unless ports are given."""
    listed = [
        {"name": f"port-{index}", "protocol": kind, "port": port, "nodePort": number + index}
        for index, (kind, port) in enumerate(ports or [("TCP", 80)])
    ]
    meta = {"name": name, "namespace": "default", "annotations": dict(annotations or {})}
    return {"metadata": meta, "spec": {"type": "LoadBalancer", "ports": listed, **spec}}


MONITORED = {ann.HEALTH_MONITOR.name: "true"}
INTERNAL = {ann.INTERNAL.name: "true"}
LOCAL: Mapping[str, Any] = {"externalTrafficPolicy": "Local"}

SHAPES: Mapping[str, Sequence[Resource]] = {
    "plain": [
        _service("one-port", 30100),
        _service("two-ports", 30110, ("TCP", 80), ("TCP", 443)),
        _service("udp", 30120, ("UDP", 53)),
        _service("both", 30130, ("TCP", 53), ("UDP", 53)),
        _service("kept", 30140, annotations={ann.KEEP_FLOATING_IP.name: "true"}),
        _service("internal", 30150, annotations=INTERNAL),
        _service("addressed", 30160, annotations=INTERNAL, loadBalancerIP="10.7.250.1"),
        _service("ranges", 30170, loadBalancerSourceRanges=["198.51.100.0/24", "192.0.2.0/24"]),
        _service("proxied", 30180, annotations={ann.PROXY_PROTOCOL.name: "true"}),
        _service("forwarded", 30190, annotations={ann.X_FORWARDED_FOR.name: "true"}),
        _service("shared", 30200, ("TCP", 8080), annotations={ann.BALANCER_ID.name: "one-port"}),
        _service(
            "monitored",
            30210,
            ("TCP", 80),
            ("UDP", 53),
            annotations={**MONITORED, ann.MONITOR_DELAY.name: "9"},
        ),
        _service("local", 30220, annotations=MONITORED, healthCheckNodePort=31220, **LOCAL),
        _service("unchecked", 30230, healthCheckNodePort=31230, **LOCAL),
        _service(
            "tuned",
            30240,
            annotations={
                ann.CONNECTION_LIMIT.name: "700",
                ann.LB_METHOD.name: "SOURCE_IP",
                ann.TIMEOUT_CLIENT_DATA.name: "60000",
                ann.TIMEOUT_MEMBER_CONNECT.name: "6000",
                ann.TIMEOUT_MEMBER_DATA.name: "70000",
                ann.TIMEOUT_TCP_INSPECT.name: "10",
            },
            sessionAffinity="ClientIP",
        ),
        _service("named", 30250, annotations={ann.HOSTNAME.name: "web.example"}),
    ],
    "groups": [
        _service("one-port", 30100),
        _service("both", 30110, ("TCP", 53), ("UDP", 53)),
        _service("proxied", 30120, annotations={ann.PROXY_PROTOCOL.name: "v2"}),
        _service("local", 30130, healthCheckNodePort=31130, **LOCAL),
        _service("unmonitored", 30140, annotations={ann.HEALTH_MONITOR.name: "false"}),
    ],
}
"""Name of a fixture -> Services. A given ID of a load balancer is the name of another Service."""


async def register(cluster: Cluster, recorded: Tables) -> None:
    """Register the recorded nodes again, as their kubelets do."""
    for node in recorded[NODES]:
        ranges = {key: node["spec"][key] for key in ("podCIDR", "podCIDRs")}
        name = node["metadata"]["name"]
        await cluster.register(name, ready=names.STATUS_TRUE, **ranges)


async def expose(cluster: Cluster, name: str, *, within_s: float = DEADLINE_S) -> None:
    """Create the Services of a fixture, and wait until they are in use."""
    for body in SHAPES[name]:
        if owner := body["metadata"]["annotations"].get(ann.BALANCER_ID.name):

            async def balancer_id(owner: str = owner) -> str:
                held = await cluster.get(f"{SERVICES}/{owner}") or {}
                given: str = held["metadata"].get("annotations", {}).get(ann.BALANCER_ID.name, "")
                return given

            found = await wait_for(balancer_id, f"load balancer of {owner}", within_s=within_s)
            given = {ann.BALANCER_ID.name: found}
            await cluster.create(
                SERVICES, {**body, "metadata": {**body["metadata"], "annotations": given}}
            )
        else:
            await cluster.create(SERVICES, body)

    async def served() -> bool:
        """The address is in the annotation, which is written last, and in the status."""
        held = [
            one for one in await cluster.items(SERVICES) if one["spec"].get("type") != "ClusterIP"
        ]
        return len(held) == len(SHAPES[name]) and all(
            one["status"].get("loadBalancer")
            and ann.BALANCER_ADDRESS.name in one["metadata"]["annotations"]
            for one in held
        )

    await wait_for(served, f"addresses of the Services of {name}", within_s=within_s)


# --- recording ------------------------------------------------------------------------------------

_NOISE = frozenset(
    {
        *("created_at", "updated_at", "tenant_id", "links", "hostId", "progress", "l7policies"),
        *("tls_ciphers", "tls_versions", "alpn_protocols", "created_at"),
        *("managedFields", "resourceVersion", "creationTimestamp", "generation"),
    }
)
"""Fields of no interest to a manager."""


def _plain(value: Any) -> Any:
    """Return a value without the fields that are of no interest."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items() if key not in _NOISE}
    return value


def written(env: Environment) -> Sequence[str]:
    """Return the writes of daemons to the API server, except for those to their own ConfigMaps.

    The Service `named` is ensured at each start, and has an event of that: a listing of load
    balancers knows no host name.
    """
    sent = env.writes(Match(write=True, path="^(?!.*/configmaps)"))
    return [str(one) for one in sent if not ("/events" in one.path and b"named" in one.body)]


def _is_of_server(port: Resource) -> bool:
    return str(port["device_owner"]).startswith("compute:")


async def read_objects(cluster: Cluster) -> Tables:
    """Return the nodes and Services, without versions and times of the API server."""
    return {
        path: _plain(
            [one for one in await cluster.items(path) if one["metadata"]["name"] != "kubernetes"]
        )
        for path in (NODES, SERVICES)
    }


async def record(lab: Any, cluster: Cluster) -> Tables:
    """Return the resources in a lab's project, and the objects of the API server."""
    found: Tables = {table: await lab.own(kind) for kind, table in OF_NEUTRON.items()}
    public = lab.state.public
    found["networks"].append(public)
    found["subnets"] += await lab.listed(
        "network", "/v2.0/subnets", "subnets", network_id=public["id"]
    )
    found |= {table: await lab.parts(kind) for kind, table in OF_OCTAVIA.items()}
    found["servers"] = [one for one in await lab.servers() if one["id"] in lab.state.used]
    found["flavors"] = [lab.state.flavor]
    used = {*lab.state.used, *(one["id"] for one in found["routers"])}
    found["ports"] = [
        port for port in found["ports"] if port["device_id"] in used or not _is_of_server(port)
    ]
    found["members"] = [
        {"id": one["id"], "members": await lab.parts(f"pools/{one['id']}/members")}
        for one in found["pools"]
    ]
    return {**_plain(found), **await read_objects(cluster)}


def write(name: str, recorded: Tables) -> None:
    """Write a fixture: one line for each resource or object, sorted."""
    tables = []
    for table, rows in sorted(recorded.items()):
        lines = ",\n  ".join(sorted(json.dumps(row, sort_keys=True) for row in rows))
        tables.append(f" {json.dumps(table)}: [\n  {lines}\n ]")
    (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(tables) + "\n}\n")


# --- restoration ----------------------------------------------------------------------------------


def read(name: str, replaced: Mapping[str, str] | None = None) -> Tables:
    """Return a fixture for the fake's project; `replaced` are IDs and the new ones."""
    text = (FOLDER / f"{name}.json").read_text()
    found: Tables = json.loads(text)
    project = found["routers"][0]["project_id"]
    for old, new in {project: PROJECT, **(replaced or {})}.items():
        text = text.replace(old, new)
    return dict(json.loads(text))


def subnet_id(recorded: Tables) -> str:
    """Return the subnet of new load balancers: that of the nodes, for IPv4."""
    nodes = {port["network_id"] for port in recorded["ports"] if _is_of_server(port)}
    (subnet,) = (
        one["id"]
        for one in recorded["subnets"]
        if one["ip_version"] == 4 and one["network_id"] in nodes
    )
    return str(subnet)


def before(recorded: Tables) -> Tables:
    """Return what there was before the manager: network and servers."""
    made = {*OF_OCTAVIA.values(), "members", "floating_ips", NODES, SERVICES}
    groups = [one for one in recorded["security_groups"] if one["name"] == "default"]
    default = [one["id"] for one in groups]
    ports = [
        {**port, "allowed_address_pairs": [], "tags": [], "security_groups": default}
        for port in recorded["ports"]
        if port["device_owner"] != "Octavia"
    ]
    routers = [{**one, "routes": []} for one in recorded["routers"]]
    kept = {table: [] if table in made else rows for table, rows in recorded.items()}
    return {**kept, "ports": ports, "routers": routers, "security_groups": groups}


def restore(world: Cloud, recorded: Tables) -> None:
    """Replace the resources of a fake."""
    for table, rows in recorded.items():
        if not table.startswith("/"):
            setattr(world, table, {row["id"]: {**row} for row in rows})
    world.members = {row["id"]: row["members"] for row in recorded["members"]}
    for server in world.servers.values():
        (server["flavor"],) = world.flavors
        del server["addresses"]  # the fake computes them from the ports


def tables_of(world: Cloud, recorded: Tables) -> Tables:
    """Return the resources of a fake, in the tables of a recording."""
    found = {table: list(getattr(world, table).values()) for table in recorded if table[0] != "/"}
    members = [{"id": number, "members": rows} for number, rows in world.members.items()]
    return {**found, "members": members}


async def restore_objects(cluster: Cluster, recorded: Tables) -> Mapping[str, str]:
    """Create the nodes and Services with their status; the old UID and the new, of each."""
    uids = {}
    for path in (NODES, SERVICES):
        for one in recorded[path]:
            spec = {key: value for key, value in one["spec"].items() if "clusterIP" not in key}
            meta = {key: value for key, value in one["metadata"].items() if key != "uid"}
            made = await cluster.create(path, {"metadata": meta, "spec": spec})
            uids[one["metadata"]["uid"]] = made["metadata"]["uid"]
            status = {"status": one.get("status", {})}
            await cluster.patch(f"{path}/{meta['name']}/status", status, kind="merge")
    return uids


# --- comparison -----------------------------------------------------------------------------------

_ID = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}|[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")
_IP = re.compile(r"\b\d+\.\d+\.\d+\.\d+\b(?!/)|\bfd00:[0-9a-f:]+(?!/)")
_NODE = re.compile(r"\bnode-\d+\b")
_VARYING = frozenset({"revision_number", "operating_status", "mac_address", "status"})
"""Fields that a cloud determines."""


def differences(ours: Tables, theirs: Tables) -> Sequence[str]:
    """Compare what two managers have made, without IDs and addresses.

    Only fields that both have are compared: the fake has not all of real services.
    """
    left, right = _parts(ours), _parts(theirs)
    found = []
    for table in left:
        fields = _fields(left[table]) & _fields(right[table]) - _VARYING
        texts = [Counter(_text(row, fields) for row in side[table]) for side in (left, right)]
        found += [f"ours, {table}: {text}" for text in (texts[0] - texts[1]).elements()]
        found += [f"theirs, {table}: {text}" for text in (texts[1] - texts[0]).elements()]
    return found


def _parts(tables: Tables) -> Tables:
    """Return what a manager creates or changes, without nested resources."""
    groups = tables["security_groups"]
    return {
        **{table: tables[table] for table in (*OF_OCTAVIA.values(), "floating_ips", "routers")},
        "ports": list(filter(_is_of_server, tables["ports"])),
        "members": [part for row in tables["members"] for part in row["members"]],
        "rules": [
            {"group": row["name"], **{field: part[field] for field in Rule.__struct_fields__[1:]}}
            for row in groups
            for part in row["security_group_rules"]
        ],
        "security_groups": [
            {key: row[key] for key in ("name", "description", "tags")} for row in groups
        ],
        NODES: [_node(one) for one in tables[NODES]],
        SERVICES: [_exposed(one) for one in tables[SERVICES]],
    }


def _node(node: Resource) -> Resource:
    """Return the fields of a node that a manager sets."""
    routed = conditions(node).get(names.CONDITION_NETWORK_UNAVAILABLE, {})
    return {
        "labels": node["metadata"]["labels"],
        "annotations": node["metadata"].get("annotations", {}),
        "providerID": node["spec"].get("providerID"),
        "taints": taints(node),
        "addresses": node["status"]["addresses"],
        "routed": {key: routed.get(key) for key in ("status", "reason", "message")},
    }


def _exposed(service: Resource) -> Resource:
    """Return the fields of a Service that a manager sets."""
    meta = service["metadata"]
    marks = {key: meta.get(key, {}) for key in ("name", "labels", "annotations", "finalizers")}
    return {**marks, "ingress": service["status"]["loadBalancer"]["ingress"]}


def _fields(rows: Sequence[Resource]) -> set[str]:
    return {key for row in rows for key in row}


def _text(row: Resource, fields: set[str]) -> str:
    shown = {key: row.get(key) for key in fields}
    for key, value in shown.items():
        if isinstance(value, list):
            shown[key] = sorted(_masked(part) for part in value)
        elif isinstance(value, dict):  # a real service shows all that might be set
            shown[key] = {name: part for name, part in value.items() if part is not None}
    return _masked(shown)


def _masked(value: Any) -> str:
    text = _ID.sub("*", json.dumps(value, sort_keys=True))
    return _NODE.sub("node-#", _IP.sub("#", text))
