"""What the doctor says of storage."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ccm.app import options
from ccm.base import redact
from ccm.doctor import cluster
from ccm.doctor.case import Case
from ccm.doctor.finding import Verdict


class Client:
    """Knows the cluster's UID and its Lease."""

    uid = "u-1"

    async def raw(self, *_: Any, **__: Any) -> bytes:
        return json.dumps({"metadata": {"uid": self.uid}}).encode()

    def resource(self, _: Any) -> Any:
        async def get(*_: Any, **__: Any) -> Any:
            return SimpleNamespace(spec=SimpleNamespace(lease_transitions=4))

        return SimpleNamespace(get=get)


def case(folder: Path, text: str) -> Case:
    file = folder / "persistence.yaml"
    file.write_text(text.replace("HERE", str(folder)))
    words = ["--cloud-provider=sim", f"--persistence-config={file}" if text else "--v=0"]
    made = Case(options=options.parse(words), environ={})
    made.client = Client()  # type: ignore[assignment]
    return made


TWO = "instances: [{file: {root: HERE/s}}, {sqlite: {path: HERE/q/x.db}}]"


async def test_storage_that_works(tmp_path: Path) -> None:
    found = await cluster.persistence(case(tmp_path, TWO))

    assert (found.verdict, found.found) == (Verdict.OK, "storage is ours, and can be written")
    assert [line.partition("-")[0] for line in found.details] == ["file", "sqlite"]
    assert all("up, " in line and "up, 0.0 ms" not in line for line in found.details)
    assert not list((tmp_path / "s").rglob("doctor.json"))


async def test_storage_of_which_a_part_is_down(tmp_path: Path) -> None:
    (tmp_path / "q").write_text("in the way")
    found = await cluster.persistence(case(tmp_path, TWO.replace("HERE/q", "HERE/q/r")))

    assert found.verdict is Verdict.WARN
    assert any(line.endswith("down") for line in found.details)


async def test_storage_of_another_cluster(tmp_path: Path) -> None:
    await cluster.persistence(case(tmp_path, TWO))
    ours = case(tmp_path, TWO)
    ours.client.uid = "u-2"  # type: ignore[attr-defined]
    found = await cluster.persistence(ours)

    assert found.verdict is Verdict.FAIL
    assert "belongs to the cluster u-1, this is u-2" in found.found


async def test_storage_of_secrets(tmp_path: Path) -> None:
    for name in ("new", "old"):
        (tmp_path / name).write_bytes(name[:1].encode() * 32)
        (tmp_path / name).chmod(0o400)
    text = TWO + (
        "\nsecrets: {encrypted: {key_files: [HERE/new, HERE/old],"
        " storage: {file: {root: HERE/v/s}}}}\n"
    )
    found = await cluster.persistence(case(tmp_path, text))
    assert found.verdict is Verdict.OK
    assert found.details[-1].endswith(": up, for secrets")
    assert redact.words(found.details[-1]) == found.details[-1]

    text = text.replace("HERE/v/s", "HERE/new/s")
    found = await cluster.persistence(case(tmp_path, text))
    assert found.verdict is Verdict.WARN
    assert found.details[-1].endswith(": down, for secrets")


async def test_wrong_file_and_none(tmp_path: Path) -> None:
    assert (await cluster.persistence(case(tmp_path, "instances: []"))).verdict is Verdict.FAIL
    assert "nothing is kept" in (await cluster.persistence(case(tmp_path, ""))).found
