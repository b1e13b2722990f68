"""Whatever happens in a rollout, in whatever order: the bounds hold, and it ends."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.machines import bounds
from ccm.model.machines import Strategy, Template
from ccm.model.times import format_time
from tests.unit.machines.rolling import RULES, Game, deployment, live

MOVES = 60
AMOUNTS = (0, 1, 2, 5, "0%", "10%", "25%", "50%", "100%")


def opened(rng: random.Random, strategy: Strategy = Strategy.ROLLING) -> Game:
    """A deployment of any size and bounds, at rest."""
    game = Game(
        deployment(
            replicas=rng.randrange(8),
            strategy=strategy,
            max_surge=rng.choice(AMOUNTS),
            max_unavailable=rng.choice(AMOUNTS),
            min_ready_s=rng.choice((0.0, 0.0, 5.0, 30.0)),
            deadline_s=rng.choice((None, 60.0)),
            history_limit=rng.choice((None, 0, 2)),
        ),
        rng,
    )
    game.settle()
    return game


def moved(game: Game, *, edits: bool) -> None:
    """Somebody's move."""
    rng = game.rng
    shelves = list(game.shelves.values())
    boxes = [(shelf, box) for shelf in shelves for box in shelf.boxes]
    moves: list[Any] = [game.act, game.act, lambda: game.wait(rng.choice((1, 10, 60)))]
    if shelves:
        one = rng.choice(shelves)
        moves += [lambda: game.tend(one), lambda: game.tend(one), game.look]
    if boxes:
        moves += [lambda: game.work(*rng.choice(boxes))] * 4
        moves += [lambda: game.fail(rng.choice(boxes)[1])]
    if edits:
        moves += [lambda: edited(game)]
    rng.choice(moves)()


def edited(game: Game) -> None:
    """The user's move, or the autoscaler's."""
    rng, now = game.rng, game.deployment
    choice = rng.randrange(7)
    if choice == 0:
        game.edit(template=Template(essence=rng.choice("abc"), rest=rng.choice("xy")))
    elif choice == 1:
        game.edit(replicas=rng.randrange(10))
    elif choice == 2:
        game.edit(max_surge=rng.choice(AMOUNTS), max_unavailable=rng.choice(AMOUNTS))
    elif choice == 3:
        game.edit(is_paused=not now.is_paused)
    elif choice == 4:
        game.edit(rollback_to=rng.randrange(4))
    elif choice == 5:
        game.edit(min_ready_s=rng.choice((0.0, 5.0)))
    else:
        scaled_down(game)


def scaled_down(game: Game) -> None:
    """The autoscaler has a machine that nobody needs."""
    names = [box.name for shelf in game.shelves.values() for box in live(shelf)]
    if not names or not game.deployment.replicas:
        return
    chosen, when = game.rng.choice(names), format_time(game.now)
    notes = {
        **game.deployment.annotations,
        RULES.names.trigger: f"{chosen}~{when}",
        RULES.names.scaler_time: when,
    }
    metadata = game.deployment.metadata
    game.edit(
        metadata=type(metadata)(name=metadata.name, uid=metadata.uid, annotations=notes),
        replicas=game.deployment.replicas - 1,
    )


def ends(game: Game) -> None:
    """Nothing fails any more: it ends as it should, and rests."""
    game.edit(is_paused=False, rollback_to=None)
    game.settle()
    found = game.machines()
    wanted = game.deployment
    sizes = {essence: len(boxes) for essence, boxes in found.items()}
    assert sizes == ({wanted.template.essence: wanted.replicas} if wanted.replicas else {})
    assert game.plan().is_empty
    said = game.plan().status
    game.act()
    assert game.plan().status == said


@given(seed=st.integers(0, 2**32))
def test_bounds_hold_whatever_anybody_does(seed: int) -> None:
    game = opened(random.Random(seed))
    for _ in range(MOVES):
        moved(game, edits=True)

    ends(game)


@given(seed=st.integers(0, 2**32))
def test_no_more_machines_than_the_surge_allows(seed: int) -> None:
    game = opened(random.Random(seed))
    game.edit(template=Template(essence="z"))
    game.peak = 0
    for _ in range(2 * MOVES):
        moved(game, edits=False)
    game.settle()

    assert game.peak <= game.deployment.replicas + bounds.surge(game.deployment)
    ends(game)


@given(seed=st.integers(0, 2**32))
def test_recreation_ends_too(seed: int) -> None:
    game = opened(random.Random(seed), Strategy.RECREATE)
    for _ in range(MOVES):
        moved(game, edits=True)

    ends(game)


@pytest.mark.soak
def test_bounds_hold_ten_thousand_times() -> None:
    for seed in range(10_000):
        game = opened(random.Random(seed))
        for _ in range(2 * MOVES):
            moved(game, edits=True)
        ends(game)
