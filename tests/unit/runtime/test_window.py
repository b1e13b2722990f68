"""What happened lately counts, what happened earlier does not."""

from __future__ import annotations

from ccm.runtime.window import SlidingCounter


def test_what_is_a_window_old_is_forgotten() -> None:
    window = SlidingCounter(10)
    for moment in (0, 1, 1, 5):
        window.note(moment)

    assert [window.count(now) for now in (5, 9.9, 10, 11, 14.9, 15)] == [4, 4, 3, 1, 1, 0]
