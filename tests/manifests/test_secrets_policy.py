"""The policy that limits the daemon's right to write Secrets, on a real API server.

It denies Secrets of an attacker and admits those of the daemon, from manifests and from the chart.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ccm.app import options
from ccm.app.clients import ProviderClient
from ccm.controllers.machine.tokens import TokenIDTaken, Tokens
from ccm.doctor.case import AuthenticatedUser, Case, CheckFinding, Severity
from ccm.doctor.permissions import bootstrap_tokens
from ccm.gardener import decoding
from ccm.gardener.decoding import NAMES
from ccm.gardener.names import ANNOTATION_TOKEN_ID
from ccm.gardener.types import Machine
from ccm.kube.client import Client
from ccm.kube.config import load
from ccm.kube.errors import Forbidden
from ccm.kube.resources import SECRETS
from ccm.kube.transport import Transport
from ccm.machines import tokens
from ccm.machines.settings import MachineSettings
from ccm.model import ObjectMeta
from ccm.model.names import BOOTSTRAP_TOKEN_TYPE
from ccm.persistence import kubesecrets
from ccm.persistence.envelope import WriterIdentity
from ccm.persistence.kubestore import LABEL, KubernetesConfig
from ccm.persistence.registry import BackendContext
from ccm.sandbox import realserver
from ccm.testing.persistence_harness import HERE
from tests import servers
from tests.manifests import account, shipped
from tests.manifests.shipped import MANIFESTS, Object
from tests.scenario.harness import wait_for

PATH = "/api/v1/namespaces/kube-system/secrets"
MERGE = {"Content-Type": "application/merge-patch+json"}
GROUPS = "system:bootstrappers:workers"
MACHINE = "default/m0"
POLICY_SAYS = "may write only Secrets that the daemon creates"

pytestmark = [pytest.mark.envtest, pytest.mark.timeout(240)]


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """One way to install the daemon: which account, with which groups, by which objects."""

    account: str
    objects: list[Object]
    groups: str = ""
    stores: bool = False


def chart(home: Path, **values: Any) -> list[Object]:
    alone = {"cloud": {"provider": shipped.PROVIDER, "config": {"existingSecret": ""}}}
    return shipped.parsed(shipped.rendered(home, {**alone, **values}))


def component(home: Path) -> Shipped:
    overlay = shipped.overlay(home, components=[shipped.MACHINES, shipped.TOKENS])
    objects = shipped.parsed(shipped.kustomized(home, overlay))
    return Shipped(account=shipped.NAME, objects=objects)


def command(home: Path) -> Shipped:
    folder = MANIFESTS / "machine-controller"
    overlay = shipped.overlay(home, base=folder, components=[folder / "bootstrap-tokens"])
    objects = shipped.parsed(shipped.kustomized(home, overlay))
    return Shipped(account="machine-controller", objects=objects)


def release(home: Path) -> Shipped:
    objects = chart(
        home,
        name="blue",
        machines={"enabled": True, "bootstrapTokens": True},
        extraArgs={"bootstrap-token-auth-extra-groups": GROUPS},
        persistence={"config": {"secrets": {"kubernetes": None}}},
    )
    return Shipped(account="blue", objects=objects, groups=GROUPS, stores=True)


def release_of_the_command(home: Path) -> Shipped:
    wanted = {
        "enabled": True,
        "bootstrapTokens": True,
        "extraArgs": {"bootstrap-token-auth-extra-groups": GROUPS},
    }
    objects = chart(home, name="green", machineController=wanted)
    return Shipped(account="machine-controller", objects=objects, groups=GROUPS)


WAYS = {
    "component": component,
    "command": command,
    "chart": release,
    "chart, command": release_of_the_command,
}


def token(token_id: str = "abcdef", *, groups: str = "", **more: str) -> Object:
    """A bootstrap token as the daemon writes it, with other data where given."""
    texts = {
        "description": tokens.description(MACHINE),
        "token-id": token_id,
        "token-secret": "0123456789abcdef",
        "expiration": "2099-01-01T00:00:00Z",
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        **({"auth-extra-groups": groups} if groups else {}),
        **{key.replace("_", "-"): text for key, text in more.items()},
    }
    name = tokens.secret_name(token_id)
    return {"metadata": {"name": name}, "type": BOOTSTRAP_TOKEN_TYPE, "stringData": texts}


def without(secret: Object, key: str) -> Object:
    return {**secret, "stringData": {k: v for k, v in secret["stringData"].items() if k != key}}


def stolen(of: str = "clusterrole-aggregation-controller") -> Object:
    """A Secret that the token controller fills with the token of another account."""
    metadata = {
        "name": "bootstrap-token-stolen",
        "annotations": {"kubernetes.io/service-account.name": of},
    }
    return {"metadata": metadata, "type": "kubernetes.io/service-account-token"}


def attacks(groups: str) -> Mapping[str, Object]:
    """Secrets that the account must not create; `groups` are those of the policy."""
    good = token(groups=groups)
    return {
        "the token of another account": stolen(),
        "a type of no use": {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "Opaque"},
        "a foreign name": {**good, "metadata": {"name": "cloud-config"}},
        "a name that is generated": {**good, "metadata": {"generateName": "bootstrap-token-"}},
        "administrators": token(groups="system:masters"),
        "other groups": token(groups=f"{GROUPS}:more"),
        "other or no groups": token(groups="" if groups else GROUPS),
        "more keys": token(groups=groups, more="x"),
        "another description": token(groups=groups, description="kubeadm"),
        "no description": without(good, "description"),
        "no end": without(good, "expiration"),
        "another use": token(groups=groups, usage_bootstrap_signing="maybe"),
        "no data": {key: good[key] for key in ("metadata", "type")},
    }


def granted(way: Shipped) -> list[Object]:
    """The account, and its rights in single namespaces."""
    bound = [
        one
        for one in way.objects
        if one["kind"] == "RoleBinding" and way.account in [s["name"] for s in one["subjects"]]
    ]
    names = {one["roleRef"]["name"] for one in bound}
    roles = [
        one for one in way.objects if one["kind"] == "Role" and one["metadata"]["name"] in names
    ]
    accounts = [
        one
        for one in way.objects
        if (one["kind"], one["metadata"]["name"]) == ("ServiceAccount", way.account)
    ]
    assert len(accounts) == 1
    return [*accounts, *roles, *bound]


class Attacked:
    """An API server with the account, its rights and the policy."""

    def __init__(self, server: realserver.RealServer, way: Shipped, bearer: str) -> None:
        self.server = server
        self.way = way
        self.token = bearer

    async def ask(
        self, method: str, path: str, body: Object | None = None, *, admin: bool = False
    ) -> tuple[int, str]:
        """A request of the account, or of an administrator."""
        headers = MERGE if method == "PATCH" else {}
        bearer = None if admin else self.token
        async with (
            servers.connect(self.server, token=bearer) as session,
            session.request(method, path, json=body, headers=headers) as response,
        ):
            return response.status, await response.text()

    @asynccontextmanager
    async def client(self, folder: Path, *, admin: bool = False) -> AsyncIterator[Client]:
        """Our client under the account, or under an administrator's."""
        file, server = folder / f"{admin}.kubeconfig", self.server
        token = server.token if admin else self.token
        realserver.write_kubeconfig(file, url=server.url, token=token, ca_file=server.ca_file)
        async with Transport(load(str(file), "", environ={})) as transport:
            yield Client(transport)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[realserver.RealServer]:
    """An API server for all ways, one after the other."""
    made = realserver.RealServer(
        assets=servers.require_assets(), data_dir=tmp_path_factory.mktemp("policy")
    )
    asyncio.run(made.start())
    yield made
    asyncio.run(made.stop())


@pytest.fixture(scope="module", params=WAYS.values(), ids=list(WAYS))
def attacked(
    request: pytest.FixtureRequest,
    server: realserver.RealServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Attacked]:
    way = request.param(tmp_path_factory.mktemp("way"))
    rights = granted(way)
    policies = [one for one in way.objects if one["kind"].startswith(shipped.POLICY)]
    assert len(policies) == 2

    async def prepared() -> str:
        async with servers.connect(server) as session:
            user = f"system:serviceaccount:{shipped.NAMESPACE}:{way.account}"
            await account.install(session, rights, user)
            bearer = await account.token_of(session, way.account)
            attacker = Attacked(server, way, bearer)

            async def free() -> bool:
                """Control: whether the attack succeeds without any policy."""
                return (await attacker.ask("POST", f"{PATH}?dryRun=All", stolen()))[0] == 201

            await wait_for(free, "a token is stolen")
            await account.install(session, policies, user)
        return bearer

    async def removed() -> None:
        async with servers.connect(server) as session:
            for one in (*policies, *rights):
                meta = one["metadata"]
                path = shipped.collection(one["kind"], meta.get("namespace", ""))
                async with session.delete(f"{path}/{meta['name']}") as response:
                    assert response.status == 200, await response.text()

    yield Attacked(server, way, asyncio.run(prepared()))
    asyncio.run(removed())


async def test_creation_of_any_other_secret_is_denied(attacked: Attacked) -> None:
    answers = {}
    for name, secret in attacks(attacked.way.groups).items():
        answers[name] = await attacked.ask("POST", PATH, secret)

    assert {name for name, (status, _) in answers.items() if status != 403} == set()
    assert {name for name, (_, text) in answers.items() if POLICY_SAYS not in text} == set()


async def test_update_deletion_and_patch_of_any_other_secret_are_denied(attacked: Attacked) -> None:
    groups = attacked.way.groups
    others = [
        {"metadata": {"name": "others"}, "stringData": {"password": "hidden"}},
        token("kubead", groups="system:bootstrappers:kubeadm:default-node-token"),
        token("foreig", groups=groups, description="another's"),
    ]
    # With persistence in Secrets, the daemon may list and so read all of them anyway.
    asked: list[tuple[str, Object | None]] = [
        ("PATCH", {"metadata": {"labels": {"a": "b"}}}),
        ("DELETE", None),
    ]
    if not attacked.way.stores:
        asked += [("GET", None), ("PATCH", {})]
    for secret in others:
        assert (await attacked.ask("POST", PATH, secret, admin=True))[0] == 201
        where = f"{PATH}/{secret['metadata']['name']}"
        for method, change in asked:
            status, text = await attacked.ask(method, where, change)
            assert (status, '"data"' in text) == (403, False), (method, change, text)
        assert (await attacked.ask("DELETE", where, admin=True))[0] == 200


async def test_fields_of_a_bootstrap_token_are_immutable(attacked: Attacked) -> None:
    groups = attacked.way.groups
    where = f"{PATH}/{tokens.secret_name('abcdef')}"
    assert (await attacked.ask("POST", PATH, token(groups=groups)))[0] == 201

    for change in (
        {"stringData": {"auth-extra-groups": "system:masters"}},
        {"data": {"expiration": None}},
        {"stringData": {"description": "x"}},
    ):
        assert (await attacked.ask("PATCH", where, change))[0] == 403
    assert (await attacked.ask("PATCH", where, {}))[0] == 200
    assert (await attacked.ask("DELETE", where))[0] == 200


async def test_the_daemon_can_manage_its_own_bootstrap_tokens(
    attacked: Attacked, tmp_path: Path
) -> None:
    way = attacked.way
    rules = MachineSettings(
        names=NAMES, cluster="ours", token_groups=way.groups, creation_timeout_s=-60.0
    )
    annotations = {ANNOTATION_TOKEN_ID: "fedcba"}
    metadata = ObjectMeta(name="m0", namespace="default", annotations=annotations)
    machine = decoding.machine(Machine(metadata=metadata))
    theirs = token("theirs", description="another's")
    assert (await attacked.ask("POST", PATH, theirs, admin=True))[0] == 201
    async with attacked.client(tmp_path) as client:
        found = Tokens(client.resource(SECRETS))

        made = await found.ensure(machine, rules)
        where = f"{PATH}/{tokens.secret_name('fedcba')}"
        before = await attacked.ask("GET", where, admin=True)
        # It has expired, so that its end is another after this.
        late = MachineSettings(
            names=NAMES, cluster="ours", token_groups=way.groups, creation_timeout_s=3600.0
        )
        assert await found.ensure(machine, late) == made
        assert await attacked.ask("GET", where, admin=True) != before
        await found.delete(machine, late)
        assert (await attacked.ask("GET", where, admin=True))[0] == 404

        metadata = ObjectMeta(
            name="m1", namespace="default", annotations={ANNOTATION_TOKEN_ID: "theirs"}
        )
        with pytest.raises(TokenIDTaken):
            await found.ensure(decoding.machine(Machine(metadata=metadata)), late)
    assert (await attacked.ask("DELETE", f"{PATH}/bootstrap-token-theirs", admin=True))[0] == 200


async def test_stored_secrets_are_allowed_only_with_persistence(
    attacked: Attacked, tmp_path: Path
) -> None:
    """`--persistence-config` has the same verbs, and the same limits."""
    label, name = LABEL, "ccm-stored-0123"
    stored = {"metadata": {"name": name, "labels": {label: "blue"}}, "type": "Opaque"}
    if not attacked.way.stores:
        assert (await attacked.ask("POST", PATH, stored))[0] == 403
        return
    for wrong in (
        {**stored, "metadata": {"name": name}},
        {**stored, "metadata": {"name": "a", "labels": {label: "blue"}}},
        {**stored, "type": "kubernetes.io/basic-auth", "stringData": {"username": "a"}},
    ):
        assert (await attacked.ask("POST", PATH, wrong))[0] == 403
    async with attacked.client(tmp_path) as client:
        context = BackendContext(
            writer=lambda: WriterIdentity(identity="test", epoch=1), requests=ProviderClient(client)
        )
        store = kubesecrets.storage([KubernetesConfig()], context)
        await store.initialize(HERE)
        (instance,) = store.instances()
        key = await store.put_secret(instance, "n", {"a": b"b"})
        assert await store.get_secret(instance, key) == {"a": b"b"}
        assert (await store.rotate(instance)).rewritten == 1
        await store.delete_secret(instance, key)
        await store.close()


async def test_a_finalizer_of_a_secret_can_be_set_only_with_read_access(attacked: Attacked) -> None:
    """An account that may list Secrets learns nothing new from the answer to a patch."""
    secret: Object = {"metadata": {"name": "a-class"}, "stringData": {"userData": "x"}}
    assert (await attacked.ask("POST", PATH, secret, admin=True))[0] == 201
    where, change = f"{PATH}/a-class", {"metadata": {"finalizers": ["example.com/held"]}}
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "patch"]}
    role = {"kind": "Role", "metadata": {"name": "classes", "namespace": "kube-system"}}
    binding = {
        "kind": "RoleBinding",
        "metadata": role["metadata"],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "classes"},
        "subjects": [
            {"kind": "ServiceAccount", "name": attacked.way.account, "namespace": "kube-system"}
        ],
    }
    user = f"system:serviceaccount:kube-system:{attacked.way.account}"
    if not attacked.way.stores:
        assert (await attacked.ask("PATCH", where, change))[0] == 403
    async with servers.connect(attacked.server) as session:
        await account.install(session, [{**role, "rules": [rule]}, binding], user)

    assert (await attacked.ask("PATCH", where, change))[0] == 200
    for other in ({"stringData": {"userData": "y"}}, {"metadata": {"annotations": {"a": "b"}}}):
        assert (await attacked.ask("PATCH", where, other))[0] == 403
    assert base64.b64encode(b"x").decode() in (await attacked.ask("GET", where, admin=True))[1]
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system"
    for path in (where, f"{rbac}/roles/classes", f"{rbac}/rolebindings/classes"):
        assert (await attacked.ask("PATCH", path, {"metadata": {"finalizers": None}}, admin=True))[
            0
        ] == 200
        assert (await attacked.ask("DELETE", path, admin=True))[0] == 200


async def test_the_doctor_warns_of_secret_rights_without_the_policy(
    attacked: Attacked, tmp_path: Path
) -> None:
    """As an administrator; the account itself may not read policies, and gets Forbidden."""
    server = attacked.server
    user = f"system:serviceaccount:kube-system:{attacked.way.account}"

    async def told(*, admin: bool) -> CheckFinding:
        case = Case(options=options.parse(["--cloud-provider=sim"]), environ={})
        case.user = AuthenticatedUser(username="admin" if admin else user)
        async with attacked.client(tmp_path, admin=admin) as client:
            case.client = client
            return await bootstrap_tokens(case)

    assert (await told(admin=True)).severity is Severity.OK
    with pytest.raises(Forbidden, match="validatingadmissionpolicies"):
        await told(admin=False)

    policies = [one for one in attacked.way.objects if one["kind"].startswith(shipped.POLICY)]
    (binding,) = [one for one in policies if one["kind"] != shipped.POLICY]
    path = shipped.collection(binding["kind"], "")
    name = binding["metadata"]["name"]
    assert (await attacked.ask("DELETE", f"{path}/{name}", admin=True))[0] == 200
    found = await told(admin=True)
    async with servers.connect(server) as session:
        await account.install(session, policies, user)

    assert (found.severity, user in found.message) == (Severity.WARN, True)
