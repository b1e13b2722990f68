"""Each disaster shows what its guard is worth: without the guard there is harm.

It is run without the guard as well (by the reference's policy, or with mass deletion allowed), or
a fault of `tests/mutants` names it. Where neither can be, as with processes that take their time
or where a second guard helps out, the faults of its guards are named here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.mutants import rows

HERE = Path(__file__).parent
LEAST = 40
UNGUARDED_TOO = {"world", "reckless"}
"""Arguments of disasters that are run without the guard as well."""

GUARDS: Mapping[str, tuple[str, ...]] = {
    # --- balancers, routes, nodes: a second guard helps out where one is missing
    "test_two_daemons_of_two_clouds_share_a_cluster_and_its_config_map": (
        "holds-other-daemon-read",
        "holds-other-leader-overwritten",
    ),
    "test_a_node_is_made_anew_between_the_answer_and_the_deletion": (
        "lifecycle-deleted-without-uid",
        "lifecycle-other-node-deleted",
        "lifecycle-evidence-of-another-node",
    ),
    "test_a_wrong_token": ("lifecycle-errors-prolong-denial", "lifecycle-pause-ignored"),
    # --- fairness: hundreds of virtual minutes, where a row takes a unit test
    "test_two_services_hang_for_half_a_day_and_the_others_follow_every_change": (
        "runtime-no-worker-lent",
        "queue-retries-among-changes",
    ),
    "test_sixteen_hanging_services_do_not_delay_a_node_change": (
        "runtime-second-one-not-lent",
        "runtime-last-worker-taken",
    ),
    "test_a_node_change_reaches_all_that_do_not_hang": (
        "runtime-hang-not-foreseen",
        "runtime-hang-never-forgiven",
    ),
    "test_a_service_that_hung_is_deleted_in_the_end": ("runtime-no-worker-lent",),
    "test_more_services_hang_than_workers_can_be_lent": (
        "runtime-lent-without-end",
        "runtime-worker-lent-for-good",
    ),
    "test_sixteen_threads_hang_and_no_other_call_waits": ("cloud-threads-shared",),
    "test_all_threads_for_balancers_hang_and_nodes_are_looked_after": (
        "app-hung-threads-ready",
        "app-hung-threads-alive",
    ),
    "test_a_thousand_stuck_nodes_do_not_delay_the_retries_of_a_new_one": (
        "runtime-new-behind-stuck",
    ),
    "test_an_api_server_that_sends_us_away_for_a_day_is_asked_again_within_minutes": (
        "errors-header-believed",
    ),
    "test_five_hundred_nodes_told_the_same_time_do_not_come_back_at_once": (
        "runtime-all-told-the-same",
    ),
    "test_a_listing_that_hangs_at_the_start_costs_a_minute_and_a_new_service_nothing": (
        "service-listing-without-end",
        "service-new-one-waits-for-the-listing",
    ),
    # --- fencing: real processes
    "test_the_event_loop_is_blocked": ("app-watchdog-unarmed", "lastresort-needs-python"),
    "test_a_change_outlives_a_stop": (
        "leader-released-beside-a-change",
        "app-lease-given-back-beside-a-thread",
        "cloud-abandoned-change-forgotten",
    ),
    "test_a_question_outlives_a_stop": ("app-lease-kept-for-a-question",),
    "test_the_leader_stands_still": (
        "fence-lapsed-lease-believed",
        "cloud-next-request-without-a-lease",
    ),
    "test_renewals_are_answered_late": ("leader-watchdog-counts-from-the-answer",),
    "test_the_wall_clock_jumps": ("leader-lease-by-the-wall",),
    "test_the_api_server_hangs_on_a_write": (
        "fence-request-outlives-the-lease",
        "fence-slow-request-cut",
    ),
    "test_one_of_two_leases_runs_out_first": (
        "app-watchdog-of-one-lease",
        "lastresort-latest-end-counts",
    ),
    "test_without_an_election_nobody_has_to_end": ("app-ended-without-election",),
}


def disasters() -> Iterator[tuple[str, ast.AsyncFunctionDef]]:
    """Each by its ID."""
    for file in sorted(HERE.glob("test_*.py")):
        for item in ast.parse(file.read_text()).body:
            if isinstance(item, ast.AsyncFunctionDef) and item.name.startswith("test_"):
                yield f"tests/disasters/{file.name}::{item.name}", item


def test_there_are_many() -> None:
    assert len(list(disasters())) >= LEAST


def test_each_does_its_harm_without_its_guard() -> None:
    named = {test.partition("[")[0] for mutant in rows.load() for test in mutant.tests}
    harmless = {
        item.name
        for id_, item in disasters()
        if not (UNGUARDED_TOO & {one.arg for one in item.args.args} or id_ in named)
    }

    assert harmless == GUARDS.keys()


def test_the_faults_of_their_guards_are_there() -> None:
    known = {mutant.id for mutant in rows.load()}

    assert {fault for faults in GUARDS.values() for fault in faults} - known == set()
