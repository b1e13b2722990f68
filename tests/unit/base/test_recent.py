"""What is remembered, and what makes room."""

from __future__ import annotations

from ccm.base.recent import Recent


def test_what_was_noted_longest_ago_makes_room() -> None:
    dropped: list[int] = []
    recent: Recent[str, int] = Recent(2, dropped=dropped.append)

    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        recent.note(key, value)

    assert (recent.of("a"), recent.of("b"), recent.of("c")) == (3, None, 4)
    assert dropped == [2]
    assert len(recent) == 2


def test_nothing_is_left_to_drop() -> None:
    recent: Recent[str, int] = Recent()
    recent.note("a", 1)

    assert recent.drop_oldest()
    assert not recent.drop_oldest()
