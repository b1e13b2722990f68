"""The table: columns, what is shown when not everything fits, and that nothing wraps."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console, RenderableType

from ccm.model import NodeAddress, names
from ccm.model.machines import Phase
from ccm.sandbox import table
from ccm.sandbox.board import Board
from ccm.sandbox.rows import Row, ServiceRow
from ccm.testing import builders
from tests.unit.sandbox.views import machine


def row(name: str = "a", *, changed_at: float = 0.0, settled_after: float | None = None) -> Row:
    return Row(name=name, seen_at=0.0, changed_at=changed_at, settled_after=settled_after)


def board_of(count: int) -> Board:
    board = Board([f"node-{number:04d}" for number in range(count)])
    for number in range(count):
        node = builders.node(
            f"node-{number:04d}",
            provider_id=f"sim://i-{number}",
            labels={names.LABEL_INSTANCE_TYPE: "small", names.LABEL_ZONE: "sim-1a"},
            addresses=[NodeAddress(type="InternalIP", address=f"10.0.0.{number}")],
        )
        board.node_seen(node, float(number))
    return board


def texts(board: Board, *, width: int = 200, height: int = 24) -> list[str]:
    return drawn(table.render(board, now=9.0, height=height), width=width)


def drawn(picture: RenderableType, *, width: int = 200) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    lines = console.render_lines(picture, pad=False)
    return ["".join(part.text for part in line).rstrip() for line in lines]


def test_each_node_has_a_line_under_the_headers() -> None:
    lines = texts(board_of(2))

    assert lines[0] == "2/2 nodes initialised, 0 warnings"
    assert lines[1].split("  ")[0] == "NAME"
    assert lines[2].split() == [
        *("node-0000", "True", "init", "in", "0", "ms", "sim://i-0", "small", "sim-1a"),
        *("10.0.0.0", "-"),
    ]
    assert lines[2].index("sim://") == lines[1].index("PROVIDER ID")


@pytest.mark.parametrize("width", [1, 20, 79, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    board = board_of(3)
    board.news.note("x" * 300, 0.0)

    assert max(map(len, texts(board, width=width))) <= width


def test_a_narrow_terminal_gets_fewer_columns_each_of_them_whole() -> None:
    board = Board(["node-0001"], routes=True)
    node = builders.node(
        "node-0001",
        provider_id="sim://i-0001",
        pod_cidrs=["100.64.0.0/24"],
        labels={names.LABEL_INSTANCE_TYPE: "medium", names.LABEL_ZONE: "sim-1a"},
        addresses=[NodeAddress(type="InternalIP", address="10.0.0.1")],
    )
    board.node_seen(node, 0.0)
    board.services["default/web"] = service_row(
        addresses=("192.0.2.1",), ports=("80/TCP", "443/TCP"), members=2, settled_after=0.5
    )

    nodes, node_line, services, service_line = texts(board, width=80)[1:5]

    assert nodes.split("  ")[-1] == "POD ROUTE"
    assert node_line.endswith("10.0.0.1   100.64.0.0/24 waits")
    assert "TYPE" not in nodes
    assert services.split()[-1] == "MEMBERS"
    assert service_line.endswith("80/TCP,443/TCP  2")
    assert [line for line in texts(board, width=80) if "…" in line] == []
    assert "LAST EVENT" in texts(board, width=120)[1]


@pytest.mark.parametrize("height", [12, 24, 60])
def test_the_picture_is_no_higher_than_its_room(height: int) -> None:
    board = board_of(100)
    for number in range(9):
        board.news.note(f"{number}", 0.0)

    lines = texts(board, height=height)

    assert len(lines) == height
    assert "... and " in "\n".join(lines)


def test_where_not_all_fit_the_latest_changes_stay() -> None:
    rows = [row("a", changed_at=1), row("b", changed_at=3), row("c", changed_at=2)]

    assert [one.name for one in table.pick(rows, room=2)] == ["b", "c"]
    assert [one.name for one in table.pick(rows, room=3)] == ["a", "b", "c"]


def test_a_state_says_what_the_daemon_did() -> None:
    waiting, done, off, gone = row(), row(settled_after=1.25), row(settled_after=1), row()
    off.is_shut_down = gone.is_deleted = True

    said = [table.state_of(one, now=7.0) for one in (waiting, done, off, gone)]

    assert said == ["waits 7 s", "init in 1.2 s", "shutdown taint", "deleted"]


def test_an_event_of_several_lines_stays_on_one() -> None:
    one = row()
    one.last_event = "Failed: first\n  second"

    assert table.node_cells(one, now=0.0, routes=False)[-1] == "Failed: first second"


def service_row(name: str = "web", **state: Any) -> ServiceRow:
    known: dict[str, Any] = {"seen_at": 0.0, "changed_at": 0.0, "type": "LoadBalancer", **state}
    return ServiceRow(name=name, key=f"default/{name}", **known)


def test_routes_have_a_column_where_there_are_routes() -> None:
    one = row()
    assert table.route_of(one) == ""
    one.pod_range = "100.64.0.0/24"
    assert table.route_of(one) == "100.64.0.0/24 waits"
    one.has_route = True
    assert table.route_of(one) == "100.64.0.0/24 made"

    with_routes = drawn(table.node_grid([one], now=0.0, routes=True))
    without = drawn(table.node_grid([one], now=0.0, routes=False))

    assert with_routes[1].index("100.64") == with_routes[0].index("POD ROUTE")
    assert "100.64" not in without[1]


def test_services_stand_below_the_nodes() -> None:
    board = board_of(2)
    board.services["default/web"] = service_row(
        addresses=("192.0.2.1",), ports=("80/TCP",), members=2, settled_after=0.5
    )

    lines = texts(board)

    assert lines[4].split("  ")[0] == "SERVICE"
    assert lines[5].split() == [
        *("web", "LoadBalancer", "served", "in", "500", "ms", "192.0.2.1", "80/TCP", "2", "-"),
    ]


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({}, "waits 7 s"),
        ({"settled_after": 1.25}, "served in 1.2 s"),
        ({"type": "ClusterIP"}, "no balancer"),
        ({"is_deleting": True, "settled_after": 1.0}, "being deleted"),
        ({"is_deleted": True, "is_deleting": True}, "deleted"),
    ],
)
def test_a_state_says_what_became_of_a_service(state: dict[str, Any], said: str) -> None:
    assert table.service_state_of(service_row(**state), now=7.0) == said


@pytest.mark.parametrize("height", [12, 24, 60])
def test_many_services_leave_room_for_the_nodes(height: int) -> None:
    board = board_of(100)
    for number in range(100):
        one = service_row(f"web-{number}", changed_at=float(number))
        board.services[one.key] = one

    lines = texts(board, height=height)

    assert len(lines) <= height
    assert "web-99 " in "\n".join(lines)
    nodes = [line for line in lines if line.startswith("node-")]
    services = [line for line in lines if line.startswith("web-")]
    assert len(nodes) >= len(services) >= 1


@pytest.mark.parametrize(
    ("phase", "deleting", "state", "style"),
    [
        (Phase.PENDING, False, "waits 9 s", table.PLAIN),
        (Phase.RUNNING, False, "joined in 2.0 s", table.GOOD),
        (Phase.UNKNOWN, False, "joined in 2.0 s", table.BAD),
        (Phase.TERMINATING, True, "being deleted", table.BAD),
    ],
    ids=["pending", "running", "sick", "deleting"],
)
def test_a_machine_has_a_line_of_its_own(
    phase: Phase, deleting: bool, state: str, style: str
) -> None:
    board = board_of(1)
    board.machine_seen(machine("m0"), 0.0)
    if phase is not Phase.PENDING:
        board.machine_seen(machine("m0", phase=Phase.RUNNING), 2.0)
    view = machine("m0", phase=phase, deleting=deleting, said="so it is", provider_id="sim://i-9")
    board.machine_seen(view, 3.0)

    lines = texts(board)

    assert lines[1].split() == [
        *("MACHINE", "CLASS", "PHASE", "STATE", "NODE", "PROVIDER", "ID", *LAST),
    ]
    assert lines[2].split() == [
        *("m0", "sandbox", phase.value, *state.split(), "m0", "sim://i-9", "so", "it", "is"),
    ]
    assert table.machine_style_of(board.machines["default/m0"]) == style


LAST = ("LAST", "EVENT")


def test_how_a_deployment_rolls_stands_above_its_machines() -> None:
    board = board_of(1)
    board.machine_seen(machine("m0"), 0.0)
    board.deployment_seen("default/workers", "workers: 1 of 3 new")

    assert texts(board)[1].strip() == "MachineDeployment workers: 1 of 3 new"
    board.deployment_gone("default/workers")
    assert not texts(board)[1].startswith("MachineDeployment")


def test_machines_that_are_gone_leave_their_places_to_those_that_are_there() -> None:
    board = board_of(0)
    for number in range(9):
        board.machine_seen(machine(f"m{number}"), 0.0)
    for number in range(6):
        board.machine_gone(f"default/m{number}", 9.0)

    shown = [row.name for row in table.pick(board.machines.values(), room=4)]

    assert shown == ["m0", "m6", "m7", "m8"]


def test_many_machines_leave_room_for_nodes() -> None:
    board = board_of(30)
    for number in range(30):
        board.machine_seen(machine(f"m{number:02d}"), float(number))

    lines = texts(board, height=24)

    assert len(lines) <= 24
    assert sum(line.startswith("node-") for line in lines) >= table.MIN_ROWS
    assert sum(line.startswith("m") for line in lines) >= 5
