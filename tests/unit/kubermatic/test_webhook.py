"""Kubermatic's Machines and MachineDeployments at admission: defaults, and what is denied."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm import cloud
from ccm.cloud import errors
from ccm.cloud.kubermatic import (
    KubermaticDriver,
    KubermaticMachineSpec,
    TerminalError,
    decode_config,
    from_kubermatic,
)
from ccm.kubermatic import names, versions
from ccm.kubermatic.webhook import MachineWebhook, is_authorized_key
from ccm.model.patches import json_patch
from ccm.serving.admission import (
    CREATE,
    UPDATE,
    AdmissionRequest,
    AdmissionResponse,
    GroupVersionKind,
    encode,
)
from providers.hcloud.kubermatic import KubermaticMachines

Json = dict[str, Any]
Change = Callable[[Json], object]

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@example"
TOKEN = {"secretKeyRef": {"namespace": "kube-system", "name": "hetzner", "key": "token"}}


class Unreachable:
    """A session with the cloud that a webhook must not use."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the webhook uses the cloud: {name}")


HETZNER = cloud.Cloud(
    name="hcloud",
    kubermatic=KubermaticDriver(KubermaticMachines(Unreachable()), {}),  # type: ignore[arg-type]
)


def spec(**value: Any) -> Json:
    config: Json = {
        "cloudProvider": "hetzner",
        "cloudProviderSpec": {"token": TOKEN, "serverType": "cx23", "location": "fsn1"},
        "operatingSystem": "ubuntu",
        "operatingSystemSpec": {"distUpgradeOnBoot": False},
        "sshPublicKeys": [KEY],
        **value,
    }
    return {"providerSpec": {"value": config}, "versions": {"kubelet": "1.35.1"}}


def machine(**value: Any) -> Json:
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": "Machine",
        "metadata": {"name": "web-1", "namespace": "kube-system"},
        "spec": spec(**value),
    }


def stored(**more: Any) -> Json:
    """Return a Machine as the webhook leaves it."""
    found = machine()
    found["spec"] |= {"metadata": {"name": "web-1"}, **more}
    return found


def deployment(**value: Any) -> Json:
    labels = {"app": "web"}
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": "MachineDeployment",
        "metadata": {"name": "web", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec(**value)},
        },
    }


def ask(
    new: Json,
    old: Json | None = None,
    *,
    provider: cloud.Cloud = HETZNER,
    constraints: str = ">=0.0.0",
    **more: Any,
) -> AdmissionResponse:
    """Return the response to a creation, or to an update if there is an old object."""
    request = AdmissionRequest(
        uid="u",
        kind=GroupVersionKind(group=names.GROUP, version=names.VERSION, kind=new["kind"]),
        operation=CREATE if old is None else UPDATE,
        object=msgspec.Raw(msgspec.json.encode(new)),
        old_object=msgspec.Raw(msgspec.json.encode(old)),
    )
    handler = MachineWebhook(lambda: provider, constraints)
    return asyncio.run(handler(msgspec.structs.replace(request, **more)))


def admitted(new: Json, old: Json | None = None, **how: Any) -> Json:
    """Return an allowed object with the patch applied."""
    answer = ask(new, old, **how)
    assert answer.allowed, answer.message
    return patched(new, answer.patch)


def denied(new: Json, old: Json | None = None, **how: Any) -> str:
    """Return the message of a denied write."""
    answer = ask(new, old, **how)
    assert not answer.allowed
    assert not answer.patch
    return answer.message


def patched(obj: Json, operations: Any) -> Json:
    """Apply a JSON Patch, written anew for the test."""
    found = copy.deepcopy(obj)
    for one in operations:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]
        ]
        target = found
        for name in parents:
            target = target[name]
        if one["op"] == "remove":
            del target[last]
        else:
            assert (one["op"] == "replace") is (last in target)
            target[last] = one["value"]
    return found


def template(obj: Json) -> Json:
    found: Json = obj["spec"]["template"]["spec"]
    return found


def value_of(machine_spec: Json) -> Json:
    found: Json = machine_spec["providerSpec"]["value"]
    return found


# --- the protocol -------------------------------------------------------------------------------


@pytest.mark.row("kubermatic-webhook-02")
def test_denial_has_the_message_and_uid_and_no_patch() -> None:
    request = AdmissionRequest(uid="u-7")
    answer = ask(machine(operatingSystem="beos"))
    response = msgspec.json.decode(encode(request, answer))["response"]

    assert (response["uid"], response["allowed"]) == ("u-7", False)
    assert "beos" in response["status"]["message"]
    assert (response["status"]["code"], response["status"]["reason"]) == (403, "Forbidden")
    assert "patch" not in response


@pytest.mark.row("kubermatic-webhook-03")
def test_patch_is_base64_and_only_for_a_changed_object() -> None:
    answer = ask(machine())
    response = msgspec.json.decode(encode(AdmissionRequest(uid="u"), answer))["response"]
    again = ask(admitted(machine()))

    assert response["patchType"] == "JSONPatch"
    decoded = msgspec.json.decode(msgspec.convert(response["patch"], bytes, strict=False))
    assert decoded == list(answer.patch)
    assert again == AdmissionResponse(allowed=True)


VALUES = st.recursive(
    st.none() | st.integers(0, 2) | st.booleans(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("a~/"), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "~1", "/~"]), VALUES)


@pytest.mark.row("kubermatic-webhook-03")
@given(before=OBJECTS, after=OBJECTS)
def test_patch_leads_from_one_object_to_the_other(before: Json, after: Json) -> None:
    operations = list(json_patch(before, after))

    assert patched(before, operations) == after
    assert bool(operations) is (before != after)


@pytest.mark.parametrize(
    "more",
    [
        {"sub_resource": "status"},
        {"operation": "DELETE"},
        {"kind": GroupVersionKind(group=names.GROUP, version=names.VERSION, kind="MachineSet")},
        {"kind": GroupVersionKind(group="machine.sapcloud.io", version="v1", kind="Machine")},
    ],
    ids=["a subresource", "a deletion", "a set", "another group"],
)
def test_other_requests_are_allowed(more: Json) -> None:
    assert ask(machine(operatingSystem="beos"), **more) == AdmissionResponse(allowed=True)


@pytest.mark.row("kubermatic-webhook-08")
@pytest.mark.parametrize("make", [machine, deployment])
def test_deleted_objects_are_allowed_unchanged(make: Callable[..., Json]) -> None:
    """Also if the spec cannot be decoded."""
    new = make()
    new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    new["spec"] = "not even an object"

    assert ask(new, make()) == AdmissionResponse(allowed=True)


# --- machines -----------------------------------------------------------------------------------


def change(path: str, value: Any) -> Change:
    """Return a function that sets the field at a dotted path."""

    def apply(obj: Json) -> None:
        *parents, last = path.split(".")
        for name in parents:
            obj = obj[name]
        obj[last] = value

    return apply


@pytest.mark.row("kubermatic-webhook-04")
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("spec.versions.kubelet", "1.36.0", "spec.versions changed"),
        ("spec.taints", [{"key": "a", "effect": "NoSchedule"}], "spec.taints changed"),
        ("spec.metadata.name", "web-2", "spec.metadata changed"),
        ("spec.metadata.labels", {"a": "b"}, "spec.metadata changed"),
        ("spec.providerSpec.value.cloudProviderSpec.serverType", "cx33", "spec.providerSpec"),
        ("spec.providerID", "hcloud://2", "spec.providerID is 'hcloud://1' and immutable"),
        ("spec.providerID", None, "spec.providerID is 'hcloud://1' and immutable"),
    ],
)
def test_spec_of_a_machine_is_immutable(path: str, value: Any, message: str) -> None:
    old = stored(providerID="hcloud://1")
    new = copy.deepcopy(old)
    change(path, value)(new)

    assert message in denied(new, old)


@pytest.mark.row("kubermatic-webhook-04")
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.providerID", "hcloud://1"),
        ("metadata.labels", {"a": "b"}),
        ("metadata.finalizers", [names.FINALIZER_MACHINE]),
        ("status", {"phase": "Running"}),
        ("spec.taints", []),
        ("spec.configSource", None),
    ],
)
def test_first_provider_id_metadata_status_and_empty_fields_may_change(
    path: str, value: Any
) -> None:
    new = stored()
    change(path, value)(new)

    assert admitted(new, stored()) == new


@pytest.mark.row("kubermatic-webhook-04")
def test_invalid_spec_of_a_machine_does_not_block_an_update() -> None:
    old = stored()
    old["spec"]["providerSpec"]["value"]["operatingSystem"] = "beos"
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"a": "b"}

    assert admitted(new, old) == new


@pytest.mark.row("kubermatic-webhook-05")
def test_bypass_allows_a_change_of_the_spec_once() -> None:
    old = stored(providerID="hcloud://1")
    new = copy.deepcopy(old)
    new["spec"]["versions"]["kubelet"] = "1.36.0"
    new["metadata"]["annotations"] = {names.ANNOTATION_BYPASS: "true", "a": "b"}
    found = admitted(new, old)
    new["spec"]["providerID"] = "hcloud://2"

    assert found["spec"]["versions"] == {"kubelet": "1.36.0"}
    assert found["metadata"]["annotations"] == {"a": "b"}
    assert "immutable" in denied(new, old)


@pytest.mark.row("kubermatic-webhook-05")
@pytest.mark.parametrize("text", ["true", "false", ""])
def test_bypass_annotation_is_always_removed(text: str) -> None:
    new = stored()
    new["metadata"]["annotations"] = {names.ANNOTATION_BYPASS: text}
    other = copy.deepcopy(new)
    other["spec"]["versions"]["kubelet"] = "1.36.0"

    assert admitted(new, stored())["metadata"]["annotations"] == {}
    assert admitted(new)["metadata"]["annotations"] == {}
    assert ask(other, stored()).allowed is (text == "true")


@pytest.mark.row("kubermatic-webhook-06")
def test_name_of_the_node_is_the_name_of_the_machine() -> None:
    generated = machine()
    generated["metadata"] = {"generateName": "web-", "namespace": "kube-system"}
    own = machine()
    own["spec"]["metadata"] = {"name": "other"}

    assert admitted(machine())["spec"]["metadata"]["name"] == "web-1"
    assert admitted(machine(), machine())["spec"]["metadata"] == {"name": "web-1"}
    assert admitted(machine(), stored())["spec"]["metadata"] == {"name": "web-1"}
    assert admitted(own)["spec"]["metadata"]["name"] == "other"
    assert "name" not in admitted(generated)["spec"]["metadata"]


@pytest.mark.row("kubermatic-webhook-07")
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (None, {names.LABEL_OPERATING_SYSTEM: "ubuntu"}),
        ({"a": "b"}, {names.LABEL_OPERATING_SYSTEM: "ubuntu", "a": "b"}),
        ({names.LABEL_OPERATING_SYSTEM: "mine"}, {names.LABEL_OPERATING_SYSTEM: "mine"}),
    ],
)
def test_new_machine_gets_the_label_of_its_operating_system(
    labels: Json | None, expected: Json
) -> None:
    new = machine()
    new["spec"]["metadata"] = {"labels": labels}
    found = admitted(new)

    assert found["spec"]["metadata"]["labels"] == expected
    assert "annotations" not in found["metadata"]
    assert "labels" not in found["metadata"]


@pytest.mark.row("kubermatic-webhook-07")
def test_update_adds_neither_label_nor_defaults() -> None:
    bare = stored()
    del bare["spec"]["providerSpec"]["value"]["operatingSystemSpec"]

    assert admitted(bare, bare) == bare


# --- deployments --------------------------------------------------------------------------------


@pytest.mark.row("kubermatic-webhook-09")
def test_deployment_gets_the_defaults() -> None:
    new = deployment()
    new["spec"]["strategy"] = {"type": "", "rollingUpdate": {"maxUnavailable": "10%"}}
    new["spec"]["replicas"] = 3
    found = admitted(new)["spec"]

    assert found["replicas"] == 3
    assert found["minReadySeconds"] == 0
    assert found["revisionHistoryLimit"] == 1
    assert found["progressDeadlineSeconds"] == 600
    assert found["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "10%"},
    }
    assert found["template"] == new["spec"]["template"]
    assert admitted(deployment())["spec"]["replicas"] == 1


def bounds(surge: Any, unavailable: Any) -> Change:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    return change("spec.strategy", {"type": "RollingUpdate", "rollingUpdate": rolling})


NEAR = {"key": "app", "operator": "Near", "values": ["web"]}


@pytest.mark.row("kubermatic-webhook-10")
@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (change("spec", {}), "template"),
        (change("spec.selector", {}), "spec.selector selects everything"),
        (change("spec.selector", {"matchLabels": {"app": "db"}}), "spec.selector requires app"),
        (change("spec.selector", {"matchExpressions": [NEAR]}), "spec.selector: "),
        (change("spec.replicas", -1), "spec.replicas is -1; it must be 0 or more"),
        (change("spec.replicas", "many"), "$.spec.replicas"),
        (change("spec.strategy", {"type": "Recreate"}), "spec.strategy.type is 'Recreate'"),
        (bounds(-1, 0), "spec.strategy.rollingUpdate.maxSurge is -1"),
        (bounds(1, "many"), "spec.strategy.rollingUpdate.maxUnavailable is 'many'"),
        (bounds(1, "101%"), "maxUnavailable is '101%'; it must be at most 100%"),
        (bounds(0, 0), "maxSurge and maxUnavailable are both 0"),
        (bounds("0%", 0), "maxSurge and maxUnavailable are both 0"),
    ],
)
def test_invalid_deployment_is_denied(apply: Change, message: str) -> None:
    new = deployment()
    apply(new)

    assert message in denied(new)
    assert message in denied(new, deployment())


@pytest.mark.row("kubermatic-webhook-10")
@pytest.mark.parametrize("given", [(0, 1), (1, 0), ("150%", "100%"), (0, "1%"), (0, 200)])
def test_valid_bounds_are_admitted(given: tuple[Any, Any]) -> None:
    new = deployment()
    bounds(*given)(new)

    assert ask(new).allowed


@pytest.mark.row("kubermatic-webhook-11")
def test_template_is_validated_only_when_it_changes() -> None:
    old = deployment(operatingSystem="beos")
    scaled = copy.deepcopy(old)
    scaled["spec"]["replicas"] = 5
    labeled = copy.deepcopy(old)
    labeled["metadata"]["labels"] = {"a": "b"}
    changed = copy.deepcopy(old)
    template(changed)["versions"]["kubelet"] = "1.36.0"

    assert template(admitted(scaled, old)) == template(old)
    assert template(admitted(labeled, old)) == template(old)
    assert "spec.template: spec.providerSpec.value.operatingSystem is 'beos'" in denied(
        changed, old
    )
    assert "beos" in denied(old)


@pytest.mark.row("kubermatic-webhook-11")
def test_update_to_the_template_without_its_defaults_starts_no_rollout() -> None:
    bare = deployment()
    del value_of(template(bare))["operatingSystemSpec"]
    old = admitted(bare)

    assert template(old) != template(bare)
    assert template(admitted(bare, old)) == template(old)


# --- specs of machines --------------------------------------------------------------------------


@pytest.mark.row("kubermatic-webhook-12", "kubermatic-spec-01")
@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (change("providerSpec", {}), "spec.providerSpec.value is missing"),
        (change("providerSpec.value.cloudProvder", "x"), "cloudProvder: unknown field"),
        (change("providerSpec.value.cloudProvider", "acme"), "cloudProvider is 'acme'; it must be"),
        (change("providerSpec.value.operatingSystem", "beos"), "operatingSystem is 'beos'"),
        (change("versions", {}), "spec.versions.kubelet is ''; it must be a version"),
        (
            change("versions.kubelet", "1.35"),
            "spec.versions.kubelet is '1.35'; it must be a version",
        ),
        (change("versions.kubelet", "1.30.0"), "must satisfy --kubernetes-version-constraints=>=1"),
        (change("configSource", {"a": "b"}), "spec.configSource is set"),
        (change("providerSpec.value.sshPublicKeys", [KEY, "x"]), "sshPublicKeys[1] is 'x'"),
        (change("providerSpec.value.cloudProviderSpec.sise", "x"), "sise: unknown field"),
        (change("providerSpec.value.cloudProviderSpec.datacenter", "fsn1-dc14"), "both set"),
    ],
)
def test_invalid_spec_is_denied(apply: Change, message: str) -> None:
    one, many = machine(), deployment()
    apply(one["spec"])
    apply(template(many))

    assert message in denied(one, constraints=">=1.31.0")
    reply = denied(many, constraints=">=1.31.0")
    assert reply.startswith("spec.template: ")
    assert message in reply


@pytest.mark.row("kubermatic-webhook-12")
def test_all_wrong_fields_are_in_one_message() -> None:
    new = machine(cloudProvider="acme", operatingSystem="beos", sshPublicKeys=["x"])
    new["spec"]["versions"] = {}
    message = denied(new)

    for field in ("cloudProvider", "operatingSystem", "sshPublicKeys[0]", "versions.kubelet"):
        assert f"{field} is" in message


@pytest.mark.row("kubermatic-webhook-12")
def test_message_of_many_faults_is_cut() -> None:
    message = denied(machine(sshPublicKeys=["x"] * 5000))

    assert message.endswith("; and 4980 more")
    assert len(message) < 5000


@pytest.mark.row("kubermatic-webhook-13")
@pytest.mark.parametrize("make", [machine, deployment])
def test_defaults_of_the_provider_are_stored(make: Callable[..., Json]) -> None:
    native = {"token": TOKEN, "serverType": "cx23", "datacenter": "fsn1-dc14", "networks": None}
    new = make(cloudProviderSpec=native, network=None, caPublicKey="")
    machine_spec = new["spec"] if make is machine else template(new)
    del value_of(machine_spec)["operatingSystemSpec"]
    before = copy.deepcopy(value_of(machine_spec))
    found = admitted(new)
    stored_value = value_of(found["spec"] if make is machine else template(found))

    assert stored_value["cloudProviderSpec"] == {
        "token": TOKEN, "serverType": "cx23", "location": "fsn1", "networks": None,
    }  # fmt: skip
    assert stored_value["operatingSystemSpec"] == {"distUpgradeOnBoot": False}
    kept = before.keys() - {"cloudProviderSpec"}
    assert {name: stored_value[name] for name in kept} == {name: before[name] for name in kept}


OTHER_PROVIDERS = (
    *("alibaba", "anexia", "aws", "azure", "baremetal", "digitalocean", "edge", "equinixmetal"),
    *("external", "fake", "gce", "kubevirt", "linode", "nutanix", "opennebula", "openstack"),
    *("packet", "scaleway", "vmware-cloud-director", "vsphere", "vultr"),
)
"""Those of the reference, but for ours."""


@pytest.mark.row("kubermatic-webhook-14")
def test_spec_of_another_program_gets_no_defaults_of_the_provider() -> None:
    native = {"datacenter": "x", "unknown": True}
    for provider in OTHER_PROVIDERS:
        foreign = machine(cloudProvider=provider, cloudProviderSpec=native)
        assert value_of(admitted(foreign)["spec"]) == value_of(foreign["spec"])

    without = cloud.Cloud(name="hetzner")
    assert admitted(machine(cloudProviderSpec=native), provider=without)
    assert "beos" in denied(machine(cloudProvider="aws", operatingSystem="beos"))


# --- providers by other authors -----------------------------------------------------------------


class Acme:
    """A provider with Kubermatic's interface; only the defaults matter."""

    def __init__(self, resolver: Any, reads: bool) -> None:
        self.resolver = resolver
        self.reads = reads

    def add_defaults(self, spec: KubermaticMachineSpec) -> KubermaticMachineSpec:
        assert spec.kubelet_version == "1.35.1"
        assert spec.provider_spec is not None
        config = decode_config(spec.provider_spec)
        if config.cloud_provider_spec.get("size") == "huge":
            raise TerminalError("TooBig", "size is huge; it must be small or large")
        if config.cloud_provider_spec.get("size") == "odd":
            raise ValueError("size is odd")
        value: Any = spec.provider_spec
        value["cloudProviderSpec"]["zone"] = "north"
        if self.reads:
            self.read(config.cloud_provider_spec)
        return replace(spec, provider_spec=value)

    def read(self, native: Mapping[str, Any]) -> None:
        try:
            self.resolver.get_credential(native, "token", "ACME_TOKEN")
        except errors.CloudError as error:
            raise RuntimeError("the token cannot be read") from error


def acme(*, reads: bool = False) -> cloud.Cloud:
    driver = from_kubermatic(
        lambda resolver: Acme(resolver, reads),  # type: ignore[arg-type, return-value]
        names=("Acme",),
    )
    return cloud.Cloud(name="acme-cloud", kubermatic=driver)


@pytest.mark.row("kubermatic-webhook-13")
def test_provider_by_another_author_sets_defaults_and_denies() -> None:
    found = admitted(machine(cloudProvider="acme"), provider=acme())

    assert value_of(found["spec"])["cloudProviderSpec"]["zone"] == "north"
    for size in ("huge", "odd"):
        wrong = machine(cloudProvider="acme", cloudProviderSpec={"size": size})
        assert f"size is {size}" in denied(wrong, provider=acme())


@pytest.mark.row("kubermatic-webhook-15")
def test_provider_that_reads_a_secret_sets_no_defaults() -> None:
    new = machine(cloudProvider="acme")
    answer = ask(new, provider=acme(reads=True))

    assert answer.allowed
    assert value_of(patched(new, answer.patch)["spec"]) == value_of(new["spec"])
    (warning,) = answer.warnings
    assert "key token of Secret kube-system/hetzner is not read by a webhook" in warning


# --- keys and versions --------------------------------------------------------------------------


@pytest.mark.row("kubermatic-webhook-16")
@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        (KEY, True),
        (KEY.rpartition(" ")[0], True),
        (f"\n# mine\n{KEY}\n", True),
        (f'from="10.0.0.0/8",command="echo \\"a b\\"" {KEY}', True),
        (f"no-pty {KEY}", True),
        (f"{KEY}\n{KEY}", True),
        ("", False),
        ("# mine", False),
        (KEY.replace("ed25519", "rsa", 1), False),
        (KEY.replace("AAAAC3", "AAAAC4"), False),
        ("ssh-ed25519", False),
        ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgME", False),
        (f"{KEY}\nwrong", False),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE=", False),
        ('"' * 100_000, False),
        ("a" * 100_000, False),
    ],
)
def test_ssh_public_keys_are_parsed(text: str, *, is_valid: bool) -> None:
    assert is_authorized_key(text) is is_valid


@pytest.mark.row("kubermatic-webhook-16")
def test_private_key_is_not_shown() -> None:
    secret = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ"
    text = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{secret}"

    assert secret not in denied(machine(sshPublicKeys=[text]))


@pytest.mark.row("kubermatic-webhook-17")
@pytest.mark.parametrize(
    ("version", "constraints", "is_admitted"),
    [
        ("1.35.1", ">=0.0.0", True),
        ("v1.35.1+build.7", ">=0.0.0", True),
        ("1.35.1", ">=1.33.0,<1.36.0", True),
        ("1.36.0", ">= 1.33.0, < 1.36.0", False),
        ("1.9.0", ">=1.33.0", False),
        ("1.40.0", "<1.36.0 || =1.40.0", True),
        ("1.40.0", "1.40.0", True),
        ("1.40.1", "!=1.40.0", True),
        ("1.40.0", "!=1.40.0", False),
        ("1.40.0", ">1.40.0", False),
        ("1.40.0", "<=1.40.0", True),
        ("1.40.0-rc.1", ">=0.0.0", False),
        ("1.40.0-rc.1", ">=0.0.0-0", True),
        ("1.40.0-rc.10", ">1.40.0-rc.9", True),
        ("1.40.0-rc.1", ">1.40.0-beta.2", True),
        ("1.40.0-1", "<1.40.0-alpha", True),
        ("1.40.0-rc", "<1.40.0-rc.1", True),
        ("1.40.0", ">1.40.0-rc.1", True),
        ("1.35", ">=0.0.0", False),
        ("01.35.0", ">=0.0.0", False),
        ("latest", ">=0.0.0", False),
        ("1.35.1 ", ">=0.0.0", False),
        ("9" * 5000 + ".0.0", ">=0.0.0", False),
        ("1.35.1-" + "9" * 5000, ">=0.0.0-0", True),
    ],
)
def test_kubelet_version_satisfies_the_constraints(
    version: str, constraints: str, *, is_admitted: bool
) -> None:
    assert versions.constraints_fault(constraints) == ""
    assert (versions.kubelet_version_fault(version, constraints) == "") is is_admitted


@pytest.mark.row("kubermatic-webhook-17")
@pytest.mark.parametrize(
    "text", ["", "~1.35.0", "^1.35.0", "1.35", ">=1.x", "1.0.0 - 2.0.0", ">=1.0.0,"]
)
def test_other_constraints_are_refused(text: str) -> None:
    assert "must be a comparison such as >=1.33.0" in versions.constraints_fault(text)


# --- what cannot be decoded ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": None},
        {"spec": {"providerSpec": "x"}},
        {"spec": {**spec(), "metadata": {"labels": [1], "name": 7}}},
        {"spec": {**spec(), "metadata": []}},
        {"spec": {"template": {"metadata": {"labels": [1]}, "spec": spec()}}},
        {"spec": {"template": {"spec": None}, "selector": {"matchLabels": {"a": "b"}}}},
        {"metadata": {"name": "a", "annotations": {"a": 1}}},
    ],
)
def test_strange_objects_are_answered(changes: Mapping[str, Any]) -> None:
    """The API server checks the schema only after the webhook, and only with our CRDs."""
    ask({**machine(), **changes})
    ask({**machine(), **changes}, machine())
    ask(machine(), {**machine(), **changes})
    ask({**deployment(), **changes}, deployment())
    ask(deployment(), {**deployment(), **changes})
