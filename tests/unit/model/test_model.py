"""Values of the typed model: metadata, labels, selectors, addresses, times, patches, nodes."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base.parsing import parse_bool
from ccm.kube.resources import SERVICES
from ccm.model import (
    Node,
    NodeAddress,
    ObjectMeta,
    ObjectReference,
    Service,
    ServicePort,
    Taint,
    names,
    patches,
)
from ccm.model.cidr import Network, overlap, parse_cidr, parse_cidrs, parse_ranges
from ccm.model.ip import parse_ip
from ccm.model.labels import key_fault, value_fault
from ccm.model.meta import object_key
from ccm.model.node import has_shutdown_taint, is_uninitialized
from ccm.model.selectors import BadSelectorError, LabelSelector, Term, matches
from ccm.model.times import format_micro_time, format_time, moment, parse_time
from ccm.testing import builders
from ccm.testing.builders import node
from ccm.testing.builders import node as build_node


def test_a_key_has_a_namespace_where_the_kind_has_one() -> None:
    assert object_key(ObjectMeta(namespace="a", name="b")) == "a/b"
    assert object_key(ObjectMeta(name="b")) == "b"


@pytest.mark.parametrize(
    ("own", "other", "lags"),
    [
        *[("9", "10", True), ("10", "9", False), ("7", "7", False)],
        *[("", "7", False), ("7", "", False), ("²", "7", False), ("7", "9" * 5000, False)],
    ],
)
def test_of_two_versions_the_lower_number_is_the_earlier(own: str, other: str, lags: bool) -> None:
    def version(text: str) -> Node:
        found = build_node("n")
        metadata = msgspec.structs.replace(found.metadata, uid="u", resource_version=text)
        return msgspec.structs.replace(found, metadata=metadata)

    assert version(own).lags_behind(version(other)) is lags


def test_nulls_and_unknown_fields_are_read_as_nothing() -> None:
    node = msgspec.json.decode(
        b'{"kind": "Node", "metadata": {"name": "n", "labels": null, "managedFields": [{"a": 1}],'
        b' "creationTimestamp": null}, "spec": {"taints": null}, "status": {"images": [1]}}',
        type=Node,
    )

    assert (node.name, node.key, node.namespace, node.uid) == ("n", "n", "", "")
    assert dict(node.labels) == dict(node.annotations) == {}
    assert (len(node.taints), len(node.addresses)) == (0, 0)


PROMISED = {
    "TAINT_UNINITIALIZED": "node.cloudprovider.kubernetes.io/uninitialized",
    "TAINT_SHUTDOWN": "node.cloudprovider.kubernetes.io/shutdown",
    "ANNOTATION_PROVIDED_NODE_IP": "alpha.kubernetes.io/provided-node-ip",
    "LABEL_ZONE_BETA": "failure-domain.beta.kubernetes.io/zone",
    "LABEL_ZONE": "topology.kubernetes.io/zone",
    "LABEL_REGION_BETA": "failure-domain.beta.kubernetes.io/region",
    "LABEL_REGION": "topology.kubernetes.io/region",
    "LABEL_INSTANCE_TYPE_BETA": "beta.kubernetes.io/instance-type",
    "LABEL_INSTANCE_TYPE": "node.kubernetes.io/instance-type",
}


def test_promised_names_never_change() -> None:
    assert {name: getattr(names, name) for name in PROMISED} == PROMISED


def test_no_two_constants_promise_the_same_text() -> None:
    texts = [
        value
        for name, value in vars(names).items()
        if name.startswith(("TAINT_", "LABEL_", "ANNOTATION_", "REASON_", "COMPONENT_"))
        and isinstance(value, str)
    ]

    assert sorted(texts) == sorted(set(texts))


@pytest.mark.parametrize(
    ("fault", "good", "bad"),
    [
        (
            value_fault,
            ["", "a", "A-1_b.c", "0", "x" * 63],
            ["-a", "a-", "a b", "a/b", "ä", ".", "a\n", "x" * 64],
        ),
        (
            key_fault,
            ["a", "A.b_c-1", "x" * 63, "example.com/a", "a.b-c.d/E", f"{'x' * 253}/a"],
            [
                *["", "/a", "a/", "a/b/c", "Example.com/a", "-a/b", "a..b/c", "a b", "x" * 64],
                f"{'x' * 254}/a",
            ],
        ),
    ],
)
def test_which_labels_are_valid(
    fault: Callable[[str], str], good: list[str], bad: list[str]
) -> None:
    assert {text: fault(text) for text in good} == dict.fromkeys(good, "")
    assert [text for text in bad if not fault(text).startswith(repr(text))] == []


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param({"a": "1", "b": "2"}, True, id="all terms hold"),
        pytest.param({"a": "1"}, False, id="one is missing"),
        pytest.param({"a": "9", "b": "2"}, False, id="a value differs"),
        pytest.param({"a": "1", "b": "2", "c": ""}, False, id="one that must not exist does"),
        pytest.param({"a": "1", "b": "2", "d": "4"}, False, id="a value that must not be is"),
        pytest.param({"a": "1", "b": "2", "d": "5"}, True, id="another value may be"),
    ],
)
def test_a_selector_holds_where_all_its_terms_do(labels: Mapping[str, str], expected: bool) -> None:
    selector = LabelSelector(
        match_labels={"a": "1"},
        match_expressions=[
            Term(key="b", operator="In", values=["2", "3"]),
            Term(key="b", operator="Exists"),
            Term(key="c", operator="DoesNotExist"),
            Term(key="d", operator="NotIn", values=["4"]),
        ],
    )

    assert matches(selector.requirements(), labels) is expected


@pytest.mark.parametrize(
    ("operator", "values", "said"),
    [
        ("Near", [], "'Near' of 'a' is none of In, NotIn, Exists, DoesNotExist"),
        ("In", [], "In of 'a' needs values"),
        ("NotIn", [], "NotIn of 'a' needs values"),
        ("Exists", ["1"], "Exists of 'a' takes no values"),
        ("DoesNotExist", ["1"], "DoesNotExist of 'a' takes no values"),
    ],
)
def test_a_term_that_makes_no_sense_is_refused(operator: str, values: list[str], said: str) -> None:
    term = Term(key="a", operator=operator, values=values)
    with pytest.raises(BadSelectorError, match=said):
        LabelSelector(match_expressions=[term]).requirements()


@given(st.ip_addresses())
def test_every_address_is_read(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    mapped = getattr(address, "ipv4_mapped", None)

    assert parse_ip(str(address)) == (mapped or address)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("01.2.3.004", "1.2.3.4"),
        ("000.0.0.0", "0.0.0.0"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:010.0.0.1", "10.0.0.1"),
        ("FD00::1", "fd00::1"),
        *dict.fromkeys(["", " 10.0.0.1", "10.0.0.1 ", "10.0.0", "10.0.0.256"], "None").items(),
        *dict.fromkeys(["10.0.0.1/24", "fe80::1%eth0", "n", "١.1.1.1"], "None").items(),
    ],
)
def test_forms_that_python_reads_otherwise(text: str, expected: str) -> None:
    assert str(parse_ip(text)) == expected


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("010.0.0.0/08", "10.0.0.0/8"),
        ("10.0.0.0/0000000008", "10.0.0.0/8"),
        ("192.168.0.0/0", "0.0.0.0/0"),
        ("10.0.0.1/32", "10.0.0.1/32"),
        ("2001:db8::1/64", "2001:db8::/64"),
        ("2001:DB8:0:0::/64", "2001:db8::/64"),
        ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
        ("::ffff:10.1.2.3/128", "10.1.2.3/32"),
        ("::ffff:10.1.2.3/0", "::/0"),
        ("::/0", "::/0"),
        (f"10.0.0.0/{'0' * 5000}", "0.0.0.0/0"),
    ],
)
def test_networks(text: str, network: str) -> None:
    assert str(parse_cidr(text)) == network


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "10.0.0.1", "10.0.0.1/", "10.0.0.1/33", "10.0.0.1/-1", "10.0.0.1/+8", "10.0.0/8",
        "10.0.0.1/8/8", " 10.0.0.0/8", "10.0.0.0/8 ", "10.0.0.0/ 8", "foo.bar", "*", "fe80::1%e/64",
        "::/129", "::ffff:10.1.2.3/129", "10.0.0.0/255.0.0.0", "10.0.0.0/٨", "10.0.0.0/1000000",
        "10.0.0.0/²", f"10.0.0.0/{'9' * 5000}", f"x/{'0' * 5000}",
    ],
)  # fmt: skip
def test_texts_that_are_no_network(text: str) -> None:
    assert parse_cidr(text) is None


def test_lists() -> None:
    found = parse_cidrs("10.0.0.0/8, ::/0")

    assert found is not None
    assert [str(each) for each in found] == ["10.0.0.0/8", "::/0"]
    assert parse_cidrs("10.0.0.0/8,") is None
    assert parse_cidrs("") is None


def network(text: str) -> Network:
    found = parse_cidr(text)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("one", "other", "overlaps"),
    [
        ("10.0.0.0/8", "10.1.0.0/16", True),
        ("2001:db8::/32", "2001::/16", True),
        ("10.0.0.0/8", "11.0.0.0/8", False),
        ("0.0.0.0/0", "::/0", False),
    ],
)
def test_overlap(one: str, other: str, overlaps: bool) -> None:
    pair = network(one), network(other)

    assert overlap(*pair) is overlap(*reversed(pair)) is overlaps


def test_truth_values() -> None:
    assert {parse_bool(word) for word in ("1", "t", "T", "TRUE", "true", "True")} == {True}
    assert {parse_bool(word) for word in ("0", "f", "F", "FALSE", "false", "False")} == {False}
    assert {parse_bool(word) for word in ("", "yes", "tRUE", " true", "2", "foo")} == {None}


@pytest.mark.row("route-range-05")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("10.0.0.0", "'10.0.0.0' is no CIDR"),
        ("10.0.0.0/8,", "'' is no CIDR"),
        ("a,b", "'a', 'b' are no CIDRs; each must look like"),
        ("10.0.0.0/8,11.0.0.0/8", "two ranges of one family"),
        ("fd00::/64,fd01::/64", "two ranges of one family"),
        ("10.0.0.0/8,fd00::/64,11.0.0.0/8", "names 3 ranges"),
    ],
)
def test_wrong_ranges_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_ranges(text)


def test_ranges_are_read() -> None:
    assert [str(each) for each in parse_ranges(" 010.244.0.0/16 ")] == ["10.244.0.0/16"]
    both = parse_ranges("10.244.0.0/16, fd00::/64")
    assert [str(each) for each in both] == ["10.244.0.0/16", "fd00::/64"]


EAST = timezone(timedelta(hours=5, minutes=30))
FIRST, LAST = datetime.fromisoformat("0002-01-01"), datetime.fromisoformat("9999-01-01")
MOMENT = datetime(2026, 1, 2, 8, 34, 5, 60, tzinfo=EAST)


def test_times_are_written_in_utc() -> None:
    assert format_time(MOMENT) == "2026-01-02T03:04:05Z"
    assert format_time(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01T00:00:00Z"
    assert format_micro_time(MOMENT) == "2026-01-02T03:04:05.000060Z"
    assert format_micro_time(MOMENT.replace(microsecond=0)) == "2026-01-02T03:04:05.000000Z"


@given(st.datetimes(timezones=st.sampled_from([UTC, EAST]), min_value=FIRST, max_value=LAST))
def test_a_micro_time_reads_back_as_the_same_moment(moment: datetime) -> None:
    assert parse_time(format_micro_time(moment)) == moment.astimezone(UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02T03:04:05Z",
        "2026-01-02T08:34:05+05:30",
        "2026-01-02T03:04:05.000000Z",
        "2026-01-02T03:04:05.000000000Z",
    ],
)
def test_any_offset_and_precision_is_read(text: str) -> None:
    moment = parse_time(text)

    assert moment == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert moment.tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        *["", "yesterday", "2026-01-02T03:04:05", "٢٠٢٦-01-02T03:04:05Z", "9" * 5000],
        *["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"],
    ],
)
def test_text_without_a_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"time zone|isoformat|out of range|must be in"):
        parse_time(text)
    assert moment(text) is None


F = "example.com/ours"


service = partial(builders.service, uid="u1", resource_version="7")


BOUND = {"resourceVersion": "7"}


def test_patches_of_finalizers() -> None:
    """A strategic patch names ours only; a merge patch writes the whole list."""
    order = {"$setElementOrder/finalizers": ["x", F], "finalizers": [F]}
    rest = {"$deleteFromPrimitiveList/finalizers": [F], "$setElementOrder/finalizers": ["x"]}
    without, with_ours = service(finalizers=["x"]), service(finalizers=["x", F])

    for strategic, added, removed in (
        (True, order, rest),
        (False, {"finalizers": ["x", F]}, {"finalizers": ["x"]}),
    ):
        add = patches.add_finalizer(without, F, strategic=strategic)
        remove = patches.remove_finalizer(with_ours, F, strategic=strategic)
        assert add == {"metadata": {**BOUND, **added}}
        assert remove == {"metadata": {**BOUND, **removed}}
        assert patches.add_finalizer(with_ours, F, strategic=strategic) is None
        assert patches.remove_finalizer(without, F, strategic=strategic) is None
    assert patches.same_object(without) == {"uid": "u1"}


WIRE = b"""{
  "apiVersion": "v1", "kind": "Node",
  "metadata": {"name": "node-1", "uid": "u-1", "resourceVersion": "41"},
  "spec": {
    "providerID": "sim://i-1", "podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/64"],
    "unschedulable": true,
    "taints": [{"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}]
  },
  "status": {
    "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
    "conditions": [
      {"type": "MemoryPressure", "status": "False"},
      {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    ],
    "nodeInfo": {"kubeletVersion": "v1.36.3"}
  }
}"""


def test_what_was_read_is_written_with_the_same_names() -> None:
    read = msgspec.json.decode(WIRE, type=Node)

    assert msgspec.to_builtins(read)["spec"] == msgspec.json.decode(WIRE)["spec"]
    assert (read.provider_id, read.spec.pod_cidr) == ("sim://i-1", "10.0.0.0/24")
    assert read.addresses == [NodeAddress(type="InternalIP", address="10.0.0.1")]


@pytest.mark.parametrize("status", ["True", "False", "Unknown"])
def test_ready_is_the_status_of_the_ready_condition(status: str) -> None:
    assert node(ready=status).ready == status
    assert node(ready=None).ready == "Unknown"


def test_a_reference_for_events_has_the_uid_and_no_version() -> None:
    reference = msgspec.json.decode(WIRE, type=Node).reference

    assert msgspec.to_builtins(reference) == {
        "kind": "Node",
        "apiVersion": "v1",
        "name": "node-1",
        "uid": "u-1",
    }


@pytest.mark.parametrize(
    ("taint", "waits", "is_shutdown"),
    [
        (Taint(key=names.TAINT_UNINITIALIZED, value="true", effect="NoSchedule"), True, False),
        (Taint(key=names.TAINT_UNINITIALIZED, value="false", effect="NoExecute"), True, False),
        (Taint(key=names.TAINT_UNINITIALIZED), True, False),
        (Taint(key=names.TAINT_SHUTDOWN, effect="NoSchedule"), False, True),
        (Taint(key=names.TAINT_SHUTDOWN, value="x", effect="NoSchedule"), False, True),
        (Taint(key=names.TAINT_SHUTDOWN, effect="NoExecute"), False, False),
    ],
)
def test_taints_are_known_by_key_and_the_one_of_shutdown_by_its_effect_too(
    taint: Taint, waits: bool, is_shutdown: bool
) -> None:
    found = node(taints=[Taint(key="other"), taint])

    assert (is_uninitialized(found), has_shutdown_taint(found)) == (waits, is_shutdown)


# What has a name of its own on the wire; the others follow one rule. All names are compared with
# those of the official client in the tests of kinds.
SENT = {
    "metadata": {"name": "web", "namespace": "default", "uid": "u"},
    "spec": {
        "ports": [{"port": 80, "targetPort": "web"}],
        "clusterIP": "10.0.0.1",
        "clusterIPs": ["10.0.0.1", "fd00::1"],
        "externalIPs": ["192.0.2.1"],
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "loadBalancerIP": "192.0.2.2",
    },
}


def test_fields_that_follow_no_rule_have_their_name_on_the_wire() -> None:
    service = msgspec.convert(SENT, Service)

    assert msgspec.to_builtins(service) == SENT
    spec = service.spec
    assert (spec.cluster_ip, spec.cluster_ips) == ("10.0.0.1", ["10.0.0.1", "fd00::1"])
    assert (spec.load_balancer_ip, spec.external_ips) == ("192.0.2.2", ["192.0.2.1"])
    assert service.ports == [ServicePort(port=80, target_port="web")]


def test_nulls_and_strange_fields_are_read() -> None:
    sent = (
        b'{"metadata":{"name":"x","namespace":"n","finalizers":null,"managedFields":[]},'
        b'"spec":{"ports":null,"trafficDistribution":"PreferClose"},'
        b'"status":{"loadBalancer":{"ingress":null},"conditions":[]}}'
    )

    service = SERVICES.decode(sent)

    assert (service.ports, service.ingress, service.finalizers) == ((), (), ())
    assert (service.type, service.is_deleting, service.key) == ("", False, "n/x")


def test_a_reference_names_kind_and_namespace() -> None:
    assert msgspec.convert(SENT, Service).reference == ObjectReference(
        kind="Service", api_version="v1", namespace="default", name="web", uid="u"
    )
