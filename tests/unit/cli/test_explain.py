"""The command line of `kube-ccm explain`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ccm.app.options.argv import UsageError
from ccm.cli import explain


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            [],
            "machine, machineset or machinedeployment with NAMESPACE/NAME, not 'nothing'",
        ),
        (["pod", "x"], "not 'pod x'"),
        (["node"], "not 'node'"),
        (["node", "a", "b"], "not 'node a b'"),
        (["node", "a", "--address=far:1"], "--address needs --ca=FILE"),
        (["node", "a", "--address=far", "--insecure"], "must be HOST:PORT"),
        (["node", "a", "-o", "yaml"], "must be table or json"),
        (["node", "a", "--ca=/nowhere", "--address=far:1"], "--ca=/nowhere: cannot be read"),
    ],
)
def test_a_mistake_is_one_clear_line(words: list[str], fault: str) -> None:
    with pytest.raises(UsageError, match=re.escape(fault)):
        explain.read(words)


@pytest.mark.parametrize("kind", ["svc", "service", "services"])
def test_kinds_are_spelt_as_kubectl_spells_them(kind: str, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(b"pem")

    wanted = explain.read([f"--ca={authority}", kind, "--address=[::1]:10258", "default/web"])

    assert (wanted.kind, wanted.name) == ("service", "default/web")
    assert (wanted.door.address, wanted.door.authorities) == ("[::1]:10258", b"pem")


def test_the_help_names_the_flags_that_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.run(["--help"]) == 0

    told = capsys.readouterr().out
    assert "--address" in told
    assert "--load-balancer-classes" in told
    assert "--concurrent-node-syncs" not in told
