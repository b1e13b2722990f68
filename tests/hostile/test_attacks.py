"""What anybody who reaches our ports can try: the daemon stays small and answers honest callers."""

from __future__ import annotations

import pytest

from tests import servers
from tests.hostile.target import Target

MOST_MIB = 200.0
SOAK = [pytest.mark.soak, pytest.mark.timeout(3600)]
AT_REST_MIB = 12.0
"""By how much more than after the first round may be held after another."""


@pytest.mark.parametrize(
    ("attack", "number"),
    [
        pytest.param("tokens", 160, id="tokens, a few"),
        pytest.param("one_byte", 2000, id="one byte, a few"),
        pytest.param("tokens", 400, id="tokens", marks=SOAK),
        pytest.param("one_byte", 5000, id="one byte", marks=SOAK),
    ],
)
@pytest.mark.parametrize("attacked", ["uvloop", pytest.param("asyncio", marks=SOAK)], indirect=True)
@servers.only_builtin
async def test_a_crowd_from_one_address_keeps_out_nobody_from_another(
    attacked: Target, attack: str, number: int
) -> None:
    """The newcomer was never seen before, and comes while the crowd is at its worst."""
    async with attacked.under((attack, "secure", number)):
        waited = [await attacked.newcomer() for _ in range(5)]
    print(f"newcomers waited for {max(waited):.2f} s at most, {attacked.peak_mib:.0f} MiB")

    assert max(waited) < attacked.limit_s
    assert attacked.peak_mib < MOST_MIB


@pytest.mark.parametrize(
    ("part", "rounds"),
    [
        pytest.param(0.04, 1, id="a small part"),
        pytest.param(1.0, 2, id="whole", marks=SOAK),
    ],
)
@pytest.mark.parametrize("attacked", ["uvloop", pytest.param("asyncio", marks=SOAK)], indirect=True)
@servers.only_builtin
async def test_crowds_make_it_neither_large_nor_slow(
    attacked: Target, part: float, rounds: int
) -> None:
    before, after = attacked.rss_mib, []
    for _ in range(rounds):
        async with attacked.under(
            ("silent", "secure", max(int(5000 * part), 2500)),
            ("silent", "webhook", max(int(5000 * part), 2500)),
            ("unfinished", "secure", max(int(2000 * part), 270)),
            ("cycles", "secure", int(10_000 * part)),
            ("paths", "secure", int(50_000 * part / rounds)),
            ("bodies", "webhook", 64),
        ):
            pass
        after.append(attacked.rss_mib)
    refused = await attacked.metric(
        "ccm_serving_connections_refused_total", server="secure", reason="crowded"
    )
    print(f"MiB: {before:.0f} before, {after} after, {attacked.peak_mib:.0f} at most")
    print(f"honest callers waited for {attacked.slowest_s} at most")

    assert attacked.peak_mib < MOST_MIB
    assert after[-1] < after[0] + AT_REST_MIB
    assert attacked.failed == []
    assert max(attacked.slowest_s.values()) < attacked.limit_s
    assert refused > 0
