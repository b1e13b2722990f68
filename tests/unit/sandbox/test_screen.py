"""Screens: lines in a pipe, one picture on a terminal, and the tables in it."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pyte
import pytest
from rich.console import Console

from ccm.model import NodeAddress, Service, names
from ccm.model.service import LoadBalancerIngress, LoadBalancerStatus, ServiceStatus
from ccm.sandbox import screen
from ccm.sandbox.board import Board
from ccm.testing import builders
from tests.unit.sandbox.views import machine


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


class Terminal:
    """A terminal with a picture, and its visible text."""

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


def test_no_color_disables_colours(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_lines_show_progress_and_warnings_first_and_news_when_converged() -> None:
    out, board = io.StringIO(), Board(["a"])
    lines = screen.Lines(out)
    board.happenings.add("early", 10.0)

    lines.show(board, now=10.0)
    lines.show(board, now=11.0)
    board.daemon_warned("careful", 11.0)
    lines.show(board, now=11.0)
    board.node_seen(builders.node("a", provider_id="x://a"), 11.5)
    board.happenings.add("late", 12.0)
    lines.show(board, now=12.0)

    assert out.getvalue().splitlines() == [
        "    0.0 s  0/1 nodes initialised, 0 warnings",
        "    1.0 s  daemon: careful",
        "    1.0 s  0/1 nodes initialised, 1 warnings",
        "    2.0 s  late",
        "    2.0 s  1/1 nodes initialised, 1 warnings",
    ]


def test_picture_is_redrawn_on_resize_and_restores_the_cursor() -> None:
    terminal = Terminal(80, 24)
    terminal.picture.say("stays")
    terminal.picture.show(Board(["a"]), now=0.0)
    assert not terminal.shows_cursor()

    terminal.resize(40, 20)
    terminal.picture.show(Board(["a"]), now=1.0)
    assert [line.split()[0] for line in terminal.seen] == ["stays", "0/1", "NAME"]

    terminal.picture.close()
    terminal.picture.say("the end")
    terminal.picture.close()
    assert terminal.shows_cursor()
    assert terminal.seen[-1] == "the end"


@pytest.mark.parametrize("columns", [80, 10, 3])
def test_picture_never_exceeds_the_terminal(columns: int) -> None:
    terminal = Terminal(columns, 10)
    board = Board(["a"])
    for number in range(50):
        board.node_seen(builders.node(f"n{number}"), 0.0)
    board.happenings.add("[red]x" * 50, 0.0)

    for moment in range(2):
        terminal.picture.show(board, now=float(moment))

        assert terminal.out.getvalue().count("\n") < 10
        assert terminal.seen[0].startswith("0/51 nodes"[: columns - 1])


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


def test_tables_have_one_line_per_object() -> None:
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


def test_tables_show_the_states_of_nodes_and_services() -> None:
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
        "new True waiting 7 s",
        "web LoadBalancer waiting 9 s",
        "plain ClusterIP no balancer",
        "leaving LoadBalancer being deleted",
    ):
        assert said in drawn


def test_svg_file_shows_the_table_without_external_resources(tmp_path: Path) -> None:
    file = tmp_path / "demo.svg"

    screen.write_svg(board_of(1), file, now=1.0)

    drawn = ElementTree.parse(file).getroot()
    words = "".join(drawn.itertext()).replace("\N{NO-BREAK SPACE}", " ")
    assert "1/1 nodes initialised" in words
    assert "sim://i-0" in words
    assert 'url("http' not in file.read_text()
