"""What a provider says about its own calls is checked where it is said."""

from __future__ import annotations

import inspect
import math

import pytest

from ccm.cloud import interface
from ccm.cloud.guarded import DEADLINES_S
from ccm.cloud.types import OPERATIONS, Limits

CALLED = (
    interface.InstancesV2,
    interface.InstanceStates,
    interface.Instances,
    interface.Zones,
    interface.Inventory,
    interface.LoadBalancer,
    interface.LoadBalancerDigests,
    interface.Routes,
)
NEVER = {"add_ssh_key_to_all_instances", "current_node_name", "get_zone"}


def test_operations_are_the_methods_the_daemon_waits_for() -> None:
    methods = {
        name
        for kind in CALLED
        for name, method in vars(kind).items()
        if inspect.iscoroutinefunction(method)
    }

    assert methods - NEVER == OPERATIONS
    assert set(DEADLINES_S) <= OPERATIONS


def test_a_deadline_of_no_operation_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"names ensure, list; operations are: .*list_routes"):
        Limits(deadlines_s={"list": 5, "ensure": 1, "list_routes": 3})


@pytest.mark.parametrize("seconds", [0, -1, math.inf, math.nan])
def test_a_deadline_is_a_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Limits(deadlines_s={"list_routes": seconds})
