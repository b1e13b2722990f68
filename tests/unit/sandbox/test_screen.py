"""Screens: lines in a pipe, one picture on a terminal, and the tables in it."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pyte
import pytest
from rich.console import Console

from ccm.model import NodeAddress, Service, names
from ccm.model.machines import Phase
from ccm.model.service import LoadBalancerIngress, LoadBalancerStatus, ServiceStatus
from ccm.sandbox import screen
from ccm.sandbox.board import Board, Row
from ccm.testing import builders
from tests.unit.sandbox.views import machine


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


class Terminal:
    """A terminal with a picture on it, and what a person sees there.

    Args:
        columns: its width.
        lines: its height.
    """

    def __init__(self, columns: int = 80, lines: int = 24) -> None:
        self.out = Tty()
        self.console = Console(
            file=self.out, force_terminal=True, width=columns, height=lines, markup=False
        )
        self.picture = screen.Picture(self.console)
        self._screen = pyte.Screen(columns, lines)
        self._screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self._screen)

    def resize(self, columns: int, lines: int) -> None:
        self.console.size = (columns, lines)
        self._screen.resize(lines, columns)

    @property
    def seen(self) -> list[str]:
        self._stream.feed(self.out.getvalue())
        self.out.seek(0)
        self.out.truncate()
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def shows_cursor(self) -> bool:
        return bool(self.seen) and not self._screen.cursor.hidden


@pytest.mark.parametrize(
    ("out", "term", "kind"),
    [
        (Tty(), "xterm", screen.Picture),
        (Tty(), "dumb", screen.Lines),
        (io.StringIO(), "xterm", screen.Lines),
    ],
)
def test_only_a_capable_terminal_gets_a_picture(
    out: io.StringIO, term: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)

    assert isinstance(screen.open_screen(out), kind)


def test_without_rich_there_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert isinstance(screen.open_screen(Tty()), screen.Lines)


def test_colours_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")

    def drawn() -> str:
        out = Tty()
        shown = screen.open_screen(out)
        shown.show(Board(["a"]), now=0.0)
        shown.close()
        return out.getvalue()

    assert "\x1b[1m" in drawn()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1m" not in drawn()


def test_lines_tell_progress_and_warnings_at_once_and_the_rest_after_convergence() -> None:
    out, board = io.StringIO(), Board(["a"])
    lines = screen.Lines(out)
    board.news.note("early", 10.0)

    lines.show(board, now=10.0)
    lines.show(board, now=11.0)
    board.daemon_warned("careful", 11.0)
    lines.show(board, now=11.0)
    board.node_seen(builders.node("a", provider_id="x://a"), 11.5)
    board.news.note("late", 12.0)
    lines.show(board, now=12.0)

    assert out.getvalue().splitlines() == [
        "    0.0 s  0/1 nodes initialised, 0 warnings",
        "    1.0 s  daemon: careful",
        "    1.0 s  0/1 nodes initialised, 1 warnings",
        "    2.0 s  late",
        "    2.0 s  1/1 nodes initialised, 1 warnings",
    ]


SUMMARY = "0/1 nodes initialised, 0 warnings"


def header(terminal: Terminal) -> str:
    return " ".join(terminal.seen[-1].split())


def test_the_picture_is_drawn_in_its_old_place_and_a_lasting_line_above_it() -> None:
    terminal = Terminal()
    for moment in range(3):
        terminal.picture.show(Board(["a"]), now=float(moment))

        assert terminal.seen[0] == SUMMARY
        assert len(terminal.seen) == 2

    terminal.picture.say("hello [bold]you[/bold]")
    terminal.picture.show(Board(["a"]), now=0.0)

    assert terminal.seen[:2] == ["hello [bold]you[/bold]", SUMMARY]
    assert header(terminal).startswith("NAME READY STATE")
    assert len(terminal.seen) == 3


def test_after_a_change_of_size_everything_is_drawn_anew() -> None:
    terminal = Terminal(80, 24)
    terminal.picture.say("stays")
    terminal.picture.show(Board(["a"]), now=0.0)
    assert len(terminal.seen) == 3

    terminal.resize(40, 20)
    terminal.picture.show(Board(["a"]), now=1.0)

    assert terminal.seen[0] == "stays"
    assert terminal.seen[1].startswith("0/1 nodes initialised")
    assert header(terminal) == "NAME STATE PROVIDER ID ADDRESSES"
    assert len(terminal.seen) == 3


@pytest.mark.parametrize("columns", [80, 10, 3])
def test_the_picture_never_fills_more_than_the_terminal(columns: int) -> None:
    terminal = Terminal(columns, 10)
    board = Board(["a"])
    for number in range(50):
        board.node_seen(builders.node(f"n{number}"), 0.0)
    board.news.note("[red]x" * 50, 0.0)

    for moment in range(2):
        terminal.picture.show(board, now=float(moment))

        assert terminal.out.getvalue().count("\n") < 10
        assert terminal.seen[0].startswith("0/51 nodes"[: columns - 1])


def test_the_cursor_comes_back() -> None:
    terminal = Terminal()
    terminal.picture.show(Board(["a"]), now=0.0)
    assert not terminal.shows_cursor()

    terminal.picture.close()
    terminal.picture.say("the end")
    terminal.picture.close()

    assert terminal.shows_cursor()
    assert terminal.seen[0] == SUMMARY
    assert terminal.seen[-1] == "the end"


# --- tables --------------------------------------------------------------------------------------


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
    console = Console(file=io.StringIO(), width=width, color_system=None)
    picture = screen.render(board, now=9.0, width=width, height=height)
    lines = console.render_lines(picture, pad=False)
    return ["".join(part.text for part in line).rstrip() for line in lines]


def served(name: str) -> Service:
    """A Service with an address."""
    status = ServiceStatus(
        load_balancer=LoadBalancerStatus(ingress=[LoadBalancerIngress(ip="192.0.2.1")])
    )
    return msgspec.structs.replace(builders.service(name), status=status)


def test_each_object_has_a_line_under_its_headers() -> None:
    board = board_of(2)
    board.service_seen(served("web"), 0.0)
    board.machine_seen(machine("m0", provider_id="sim://i-9", said="so it\n is"), 0.0)
    board.deployments["default/workers"] = "workers: 1 of 3 new"

    lines = [" ".join(line.split()) for line in texts(board)]

    assert lines[:2] == [
        "0/1 machines, 2/2 nodes initialised, 1/1 Services, 0 warnings",
        "MachineDeployment workers: 1 of 3 new",
    ]
    assert lines[2] == "MACHINE CLASS PHASE STATE NODE PROVIDER ID LAST EVENT"
    assert lines[3].endswith("sim://i-9 so it is")
    assert lines[4] == "NAME READY STATE PROVIDER ID TYPE ZONE ADDRESSES LAST EVENT"
    assert lines[5] == "node-0000 True init in 0 ms sim://i-0 small sim-1a 10.0.0.0 -"
    assert lines[7] == "SERVICE TYPE STATE ADDRESS PORTS MEMBERS LAST EVENT"
    assert lines[8] == "web LoadBalancer served in 0 ms 192.0.2.1 80/TCP - -"


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

    headers, line = texts(board, width=80)[1:3]

    assert headers.split("  ")[-1] == "POD ROUTE"
    assert line.endswith("10.0.0.1   100.64.0.0/24 waits")
    assert "TYPE" not in headers
    assert "LAST EVENT" in texts(board, width=120)[1]


@pytest.mark.parametrize(("width", "height"), [(200, 24), (200, 60), (1, 24), (20, 24), (79, 24)])
def test_the_picture_is_no_larger_than_its_room(width: int, height: int) -> None:
    board = board_of(100)
    board.news.note("x" * 300, 0.0)
    for number in range(100):
        board.service_seen(builders.service(f"web-{number:02d}"), float(number))
        board.machine_seen(machine(f"m{number:02d}"), float(number))

    lines = texts(board, width=width, height=height)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    if width == 200:
        assert "... and " in "\n".join(lines)
        assert "web-99 " in "\n".join(lines)
        assert sum(line.startswith("node-") for line in lines) >= screen.MIN_ROWS


def row(name: str, *, changed_at: float = 0.0, is_deleted: bool = False) -> Row:
    return Row(
        key=name, name=name, uid="", seen_at=0.0, changed_at=changed_at, is_deleted=is_deleted
    )


def test_where_not_all_fit_the_latest_changes_stay_and_deleted_rows_go() -> None:
    rows = [row("a", changed_at=1), row("b", changed_at=3), row("c", changed_at=2)]
    rows.append(row("d", changed_at=9, is_deleted=True))

    assert [one.name for one in screen.pick(rows, room=2)] == ["b", "c"]
    assert [one.name for one in screen.pick(rows, room=4)] == ["a", "b", "c", "d"]


def test_states_of_nodes_and_services() -> None:
    board = board_of(1)
    board.node_seen(builders.node("off", taints=[builders.shutdown_taint()]), 0.0)
    board.node_seen(builders.node("gone"), 0.0)
    board.node_gone("gone", 1.0)
    board.node_seen(builders.node("new"), 2.0)
    board.service_seen(builders.service("web"), 0.0)
    board.service_seen(builders.service("plain", type="ClusterIP"), 0.0)
    leaving = builders.service("leaving")
    marked = msgspec.structs.replace(leaving.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    leaving = msgspec.structs.replace(leaving, metadata=marked)
    board.service_seen(leaving, 0.0)

    drawn = "\n".join(" ".join(line.split()) for line in texts(board))

    for said in (
        "off True shutdown taint",
        "gone - deleted",
        "new True waits 7 s",
        "web LoadBalancer waits 9 s",
        "plain ClusterIP no balancer",
        "leaving LoadBalancer being deleted",
    ):
        assert said in drawn


@pytest.mark.parametrize(
    ("phase", "deleting", "state", "style"),
    [
        (Phase.PENDING, False, "waits 9 s", screen.PLAIN),
        (Phase.RUNNING, False, "joined in 2.0 s", screen.GOOD),
        (Phase.UNKNOWN, False, "joined in 2.0 s", screen.BAD),
        (Phase.TERMINATING, True, "being deleted", screen.BAD),
    ],
    ids=["pending", "running", "sick", "deleting"],
)
def test_states_of_machines(phase: Phase, deleting: bool, state: str, style: str) -> None:
    board = board_of(1)
    board.machine_seen(machine("m0"), 0.0)
    if phase is not Phase.PENDING:
        board.machine_seen(machine("m0", phase=Phase.RUNNING), 2.0)
    board.machine_seen(machine("m0", phase=phase, deleting=deleting), 3.0)

    assert state in texts(board)[2]
    assert screen._style(board.machines.rows["default/m0"]) == style


def test_the_file_is_the_table_as_an_image_that_needs_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "demo.svg"

    screen.write_svg(board_of(1), file, now=1.0)

    drawn = ElementTree.parse(file).getroot()
    words = "".join(drawn.itertext()).replace("\N{NO-BREAK SPACE}", " ")
    assert "1/1 nodes initialised" in words
    assert "sim://i-0" in words
    assert 'url("http' not in file.read_text()
