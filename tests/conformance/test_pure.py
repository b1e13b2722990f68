"""Rows that need no server: addresses, node IPs, taints, options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from ccm.app import options
from ccm.cloud import InstanceMetadata, add_to_node_addresses, address
from ccm.cloud.types import InstanceState, Power
from ccm.controllers.node import plan
from ccm.controllers.nodelifecycle import plan as lifecycle
from ccm.model import NodeAddress, Taint, names
from ccm.model.node import has_shutdown_taint
from ccm.testing.builders import node, shutdown_taint, uninitialized_taint
from tests.conformance.environment import row

internal = partial(address, "InternalIP")
external = partial(address, "ExternalIP")

HOST = address("Hostname", "hostname")
LOCAL = address("Hostname", "localhost")
IN, EX = internal("10.0.0.1"), external("132.143.154.163")


# --- change of addresses --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        row("node-change-01", [IN, EX], [IN, EX], False),
        row("node-change-02", [IN, external("132.143.154.164")], [IN, EX], True),
        row("node-change-03", [IN, EX, HOST], [IN, EX], True),
        row("node-change-04", [IN, EX], [IN, EX, HOST], True),
        row("node-change-05", [external("10.0.0.1"), internal(EX.address)], [IN, EX], True),
        row("node-change-06", [HOST, IN], [IN, HOST], False),
        row("node-change-07", [IN, internal("fd00::1")], [IN, internal("fd00::1")], False),
        row("node-change-08", [IN, internal("fd00::1")], [internal("fd00::1"), IN], True),
        row("node-change-09", [IN, internal("b")], [internal("b"), internal("b")], True),
    ],
)
def test_addresses_differ_by_value_and_order_within_a_type(
    old: Sequence[NodeAddress], new: Sequence[NodeAddress], changed: bool
) -> None:
    assert plan.addresses_differ(old, new) is changed


@pytest.mark.parametrize(
    ("existing", "added", "expected"),
    [
        row("address-add-01", [], [], []),
        row("address-add-02", [], [external("1.1.1.1"), LOCAL], [external("1.1.1.1"), LOCAL]),
        row("address-add-03", [], [external("1.1.1.1")] * 2, [external("1.1.1.1")]),
        row(
            "address-add-04",
            [external("1.1.1.1"), internal("10.1.1.1")],
            [external("1.1.1.1"), LOCAL],
            [external("1.1.1.1"), internal("10.1.1.1"), LOCAL],
        ),
    ],
)
def test_addresses_are_added_once(
    existing: Sequence[NodeAddress], added: Sequence[NodeAddress], expected: Sequence[NodeAddress]
) -> None:
    assert add_to_node_addresses(existing, *added) == expected


# --- the node IP that the kubelet was given ---------------------------------------------------

FIVE, FIVE_IN = external("55.55.55.55"), internal("55.55.55.55")
ONE, ONE_OTHER = internal("10.1.1.1"), internal("10.1.1.2")
ONE_HOST = address("Hostname", "10.1.1.1")
SIX = internal("fc01:1234::5678")
SIX_OTHER = internal("fc01:1234::1234")
SIX_OUT = external("2001:db1::1")
LONG = internal("2600:1f14:1d4:d101:0:0:0:ba3d")
DNS = [address("InternalDNS", "a"), address("ExternalDNS", "b")]
PAIR = "10.1.1.1,fc01:1234::5678"


@pytest.mark.parametrize(
    ("provided", "cloud", "expected"),
    [
        row("node-ip-01", "10.1.1.1", [ONE, HOST], [ONE, HOST]),
        row("node-ip-02", "55.55.55.55", [ONE, FIVE, HOST], [FIVE, ONE, HOST]),
        row(
            "node-ip-03",
            "55.55.55.55",
            [internal("44.44.44.44"), external("44.44.44.44"), FIVE_IN, FIVE, HOST],
            [FIVE_IN, FIVE, HOST],
        ),
        row("node-ip-04", "10.1.1.1", [ONE, FIVE, *DNS, HOST], [ONE, FIVE, *DNS, HOST]),
        row(
            "node-ip-05",
            "10.1.1.1",
            [ONE, internal("10.2.2.2"), internal("10.3.3.3"), FIVE, HOST],
            [ONE, FIVE, HOST],
        ),
        row("node-ip-06", "10.2.2.2", [ONE, FIVE, HOST], None),
        row("node-ip-07", "2600:1f14:1d4:d101::ba3d", [ONE, LONG, HOST], [LONG, HOST]),
        row("node-ip-08", PAIR, [ONE, HOST], None),
        row("node-ip-09", PAIR, [ONE, SIX, HOST], [ONE, SIX, HOST]),
        row("node-ip-10", PAIR, [SIX, ONE, HOST], [ONE, SIX, HOST]),
        row("node-ip-11", PAIR, [ONE, ONE_OTHER, SIX_OTHER, SIX, HOST], [ONE, SIX, HOST]),
        row("node-ip-12", PAIR, [ONE, FIVE, SIX_OTHER, SIX, HOST], [ONE, SIX, FIVE, HOST]),
        row(
            "node-ip-13",
            "fc01:1234::5678,10.1.1.1",
            [ONE, FIVE, SIX, SIX_OUT, HOST],
            [SIX, ONE, FIVE, SIX_OUT, HOST],
        ),
        row(
            "node-ip-14",
            "55.55.55.55,fc01:1234::5678",
            [ONE, FIVE, SIX, SIX_OUT, HOST],
            [FIVE, SIX, HOST],
        ),
        row("node-ip-15", "::ffff:10.1.1.1", [ONE, HOST], [ONE, HOST]),
        row(
            "node-ip-16", "10.1.1.1", [ONE_HOST, HOST, ONE, ONE_OTHER, FIVE], [ONE_HOST, ONE, FIVE]
        ),
        row("node-ip-17", "10.1.1.1", [], None),
    ],
)
def test_addresses_are_filtered_and_ordered_by_the_node_ip(
    provided: str, cloud: Sequence[NodeAddress], expected: Sequence[NodeAddress] | None
) -> None:
    if expected is None:
        with pytest.raises(plan.Rejected, match="is not among the cloud's addresses"):
            plan.addresses_for_node_ip(provided, cloud)
    else:
        assert list(plan.addresses_for_node_ip(provided, cloud)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        row("node-ip-text-01", "", None),
        row("node-ip-text-01", " ", None),
        row("node-ip-text-01", "blah", None),
        row("node-ip-text-01", "1.2.3", None),
        row("node-ip-text-01", "1.2.3.0/24", None),
        row("node-ip-text-02", " 1.2.3.4   ", None),
        row("node-ip-text-03", "1.2.3.4,not-an-IPv6-address", None),
        row("node-ip-text-03", "abcd::ef01 , 1.2.3.4", None),
        row("node-ip-text-03", "abcd::ef01 , 1.2.3.4, something else", None),
        row("node-ip-text-04", "1.2.3.4", ["1.2.3.4"]),
        row("node-ip-text-05", "01.2.3.004", ["1.2.3.4"]),
        row("node-ip-text-06", "0.0.0.0", ["0.0.0.0"]),
        row("node-ip-text-07", "abcd::ef01", ["abcd::ef01"]),
        row("node-ip-text-08", "abcd:0abc:00ab:0000:0000::1", ["abcd:abc:ab::1"]),
        row("node-ip-text-09", "1.2.3.4,abcd::ef01", ["1.2.3.4", "abcd::ef01"]),
        row("node-ip-text-10", "1.2.3.4,5.6.7.8", None),
        row("node-ip-text-10", "abcd::1,abcd::2", None),
        row("node-ip-text-10", "1.2.3.4,abcd::1,5.6.7.8", None),
        row("node-ip-text-11", "1.2.3.4,::", None),
        row("node-ip-text-11", "0.0.0.0,abcd::1", None),
        row("node-ip-text-12", "10.0.0.1,::ffff:10.0.0.2", None),
        row("node-ip-text-13", "fe80::1%eth0", None),
    ],
)
def test_node_ip_annotation_is_one_ip_or_a_dual_stack_pair(
    text: str, expected: Sequence[str] | None
) -> None:
    if expected is None:
        with pytest.raises(plan.Rejected, match="annotation"):
            plan.parse_node_ip(text)
    else:
        assert [str(ip) for ip in plan.parse_node_ip(text)] == expected


# --- taints -----------------------------------------------------------------------------------

DOWN = shutdown_taint()
OTHER = Taint(key="other", effect="NoSchedule")
NO_EXECUTE = shutdown_taint(effect="NoExecute")
WITH_VALUE = Taint(key=names.TAINT_SHUTDOWN, value="x", effect="NoSchedule")


@pytest.mark.parametrize(
    ("taints", "expected"),
    [
        row("taint-01", [OTHER, DOWN], True),
        row("taint-01", [WITH_VALUE], True),
        row("taint-02", [OTHER], False),
        row("taint-02", [], False),
        row("taint-03", [NO_EXECUTE], False),
    ],
)
def test_shutdown_taint_is_recognised_by_key_and_effect(
    taints: Sequence[Taint], expected: bool
) -> None:
    assert has_shutdown_taint(node(taints=taints)) is expected


UNTOUCHED = "nothing is written"
KEPT = {"key": "other", "effect": "NoSchedule"}
ADDED = {"key": names.TAINT_SHUTDOWN, "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("taints", "power", "left"),
    [
        row("taint-04", [OTHER], None, UNTOUCHED),
        row("taint-04", [NO_EXECUTE], None, UNTOUCHED),
        row("taint-05", [DOWN], None, None),
        row("taint-05", [OTHER, WITH_VALUE], None, [KEPT]),
        row("taint-06", [], None, UNTOUCHED),
        row("taint-07", [DOWN], Power.SHUTDOWN, UNTOUCHED),
        row("taint-07", [WITH_VALUE], Power.SHUTDOWN, UNTOUCHED),
        row("taint-08", [OTHER], Power.SHUTDOWN, [KEPT, ADDED]),
        row("taint-09", [OTHER], Power.RUNNING, UNTOUCHED),
    ],
)
def test_only_a_ready_node_loses_the_shutdown_taint(
    taints: Sequence[Taint], power: Power | None, left: object
) -> None:
    """The power state of a ready node is not requested."""
    ready = "True" if power is None else "False"
    state = None if power is None else InstanceState(exists=True, power=power)

    patch = lifecycle.taint_patch(node(taints=taints, ready=ready), state)

    assert (UNTOUCHED if patch is None else patch["spec"]["taints"]) == left


@pytest.mark.parametrize(
    ("taints", "left"),
    [
        row("taint-10", [OTHER, uninitialized_taint()], [KEPT]),
        row("taint-10", [uninitialized_taint(value="", effect="NoExecute")], None),
    ],
)
def test_initialisation_removes_only_the_uninitialized_taint(
    taints: Sequence[Taint], left: object
) -> None:
    before = node(taints=taints, provider_id="fake://1")

    patch, _ = plan.initialization(before, InstanceMetadata(provider_id="fake://1"))

    assert patch["spec"] == {"taints": left}


# --- options ------------------------------------------------------------------------------------


FIVE_SYNCS = "--concurrent-node-syncs=5"


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        row("options-node-01", "", ""),
        row("options-node-02", "--concurrent-node-syncs=-5", "must be 1 or more"),
        row("options-node-03", "--concurrent-node-syncs=0", "must be 1 or more"),
        row("options-node-04", f"{FIVE_SYNCS} --concurrent-node-status-updates=0", ""),
        row("options-node-05", f"{FIVE_SYNCS} --concurrent-node-status-updates=5", ""),
        row(
            "options-node-06",
            f"{FIVE_SYNCS} --concurrent-node-status-updates=-1",
            "must be 0 (the value of --concurrent-node-syncs) or more",
        ),
        row("options-node-07", "--concurrent-node-lifecycle-syncs=0", "must be 1 or more"),
    ],
)
def test_worker_count_flags_are_validated(argv: str, fault: str) -> None:
    found = options.faults(options.parse(["--cloud-provider=sim", *argv.split()]))

    assert len(found) == bool(fault)
    assert all(fault in text for text in found)


@pytest.mark.parametrize(
    ("argv", "workers"),
    [
        row("options-node-08", "--concurrent-node-syncs=5", 5),
        row("options-node-08", "--concurrent-node-syncs=1 --concurrent-node-status-updates=2", 2),
        row("options-node-08", "", 32),
    ],
)
def test_address_pass_workers_default_to_concurrent_node_syncs(argv: str, workers: int) -> None:
    parsed = options.parse(["--cloud-provider=sim", *argv.split()])

    assert parsed.node_status_workers == workers


@pytest.mark.row("options-node-09")
def test_default_periods_and_rates() -> None:
    parsed = options.parse(["--cloud-provider=sim"])

    assert parsed.node_status_update_frequency.total_seconds() == 300
    assert parsed.node_monitor_period.total_seconds() == 5
    assert parsed.concurrent_node_syncs == 32
    assert parsed.concurrent_node_lifecycle_syncs == 16
    assert parsed.api_rate == (20, 30)
