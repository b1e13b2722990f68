"""Following the daemon's log."""

from __future__ import annotations

from pathlib import Path

from ccm.sandbox.daemonlog import DaemonLog


def test_each_whole_line_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = DaemonLog(path)
    path.write_text('{"msg":"one","level":"info"}\n{"msg":"tw')
    assert [entry.msg for entry in log.news()] == ["one"]

    with path.open("a") as more:
        more.write('o","level":"warning","extra":[1]}\n')

    (entry,) = log.news()
    assert (entry.msg, entry.is_warning) == ("two", True)
    assert log.news() == []


def test_what_is_no_log_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('Traceback (most recent call last):\n[]\n\xff\n{"msg":"x","level":"error"}\n')

    assert [entry.msg for entry in DaemonLog(path).news()] == ["x"]


def test_the_figures_stand_in_the_last_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = DaemonLog(path)
    path.write_text('{"msg":"stopping"}\n')
    assert [(entry.msg, log.last) for entry in log.news()] == [("stopping", None)]

    figures = '"node_writes":10,"service_writes":3,"cloud_calls":2'
    path.write_text(f'{{"msg":"stopping"}}\n{{"msg":"stopped",{figures}}}\n')
    log.news()

    assert log.last is not None
    assert (log.last.writes, log.last.cloud_calls) == (13, 2)


def test_an_entry_reads_as_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"msg":"it failed","node":"a","err":"no answer","level":"error"}\n')

    assert [str(entry) for entry in DaemonLog(path).news()] == ["it failed a no answer"]
