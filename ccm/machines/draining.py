"""What a drain is asked for, and what it says of itself. Pure.

Who ends a machine starts a drain and looks at its progress; how it is done, `drain` decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ccm.model.machines import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTask:
    """What is to be drained.

    Attributes:
        machine: whose node it is; its UID names the drain.
        node_name: of the node; never empty.
        force: no regard for budgets, grace or volumes, from the beginning.
        deadline: from when on what is left is drained by force; None = never.
        max_evict_retries: how often a refused eviction is repeated before its Pod goes by force;
            None = as the settings say.
        terminating: whether the node ends with it, which is said on the node.
        cordon: whether the node is cordoned; False: somebody else keeps Pods from it.
        left_s: how long it was to the deadline when the task was made, whatever clocks say later;
            None = as they say now.
    """

    machine: Machine
    node_name: str
    force: bool
    deadline: datetime | None
    max_evict_retries: int | None = None
    terminating: bool = True
    cordon: bool = True
    left_s: float | None = None


class DrainState(Enum):
    """How far a drain is."""

    RUNNING = "running"
    DONE = "done"
    """Nothing is left on the node that a drain removes."""
    FAILED = "failed"
    """It gave up; to `start` it again begins anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """How far a drain is.

    Attributes:
        state: whether it goes on.
        said: one line for people; of a drain that failed, what follows the words `Drain failed
            due to ` (`- <error>`, or `failure in update of node conditions - <error>`).
        forced: whether it used force, be it that its deadline had passed. Volumes may still be
            attached to the node then.
    """

    state: DrainState
    said: str
    forced: bool = False
