"""The picture for documents: all that the table says, and nothing that its reader would fetch."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from ccm.sandbox import picture
from ccm.sandbox.board import Board
from ccm.testing import builders


def test_the_file_is_the_table_as_an_image_that_needs_nothing_else(tmp_path: Path) -> None:
    board = Board(["node-0001"])
    board.node_seen(builders.node("node-0001", provider_id="sim://i-0001"), 0.0)
    file = tmp_path / "demo.svg"

    picture.write_svg(board, file, now=1.0)

    drawn = ElementTree.parse(file).getroot()
    texts = "".join(drawn.itertext()).replace("\N{NO-BREAK SPACE}", " ")
    assert "1/1 nodes initialised" in texts
    assert "sim://i-0001" in texts
    assert 'url("http' not in file.read_text()
