"""The crash table of the journal: 0 resources left over, 0 deleted wrongly, with each cloud."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests import servers
from tests.vendors.clouds import Hcloud, OpenStack, Sim, Stackit, Vendor
from tests.vendors.crashes import FLAGS, UNANSWERED, CrashPoint, CrashTable, points_of

EVERY = 11


def sample(points: Sequence[CrashPoint]) -> Sequence[CrashPoint]:
    """Those at which only the intent shows the resource, and a selection of the others."""
    unanswered = [one for one in points if one.row is UNANSWERED and one.is_lost]
    return [*unanswered, *[one for one in points if one not in unanswered][EVERY // 2 :: EVERY]]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.row("journal-01", "journal-02", "journal-03")
@servers.only_builtin
@pytest.mark.parametrize("choose", [sample, pytest.param(list, marks=pytest.mark.soak)])
@pytest.mark.parametrize("made", [Sim, Hcloud, OpenStack, Stackit])
async def test_killed_daemon_leaves_nothing_behind_and_deletes_nothing_of_others(
    api_server: servers.ApiServer,
    tmp_path: Path,
    made: Callable[[], Vendor],
    choose: Callable[[Sequence[CrashPoint]], Sequence[CrashPoint]],
) -> None:
    vendor = made()
    vendor.flags = {**vendor.flags, **FLAGS}
    async with vendor.opened(api_server, tmp_path) as (env, cloud):
        table = CrashTable(env, vendor, cloud, await env.new_proxy())
        await table.prepare()
        for point in choose(points_of(vendor)):
            await table.die(point)
