"""A further controller is one folder, and one line in the list of controllers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

MANIFEST = """
from __future__ import annotations

from dataclasses import dataclass

from ccm.base import flag_checks
from ccm.base.flags import Section
from ccm.base.gates import Gate
from ccm.runtime.manifest import Manifest

SECTION = Section("gadgets", ours=True)


@dataclass(frozen=True, kw_only=True)
class GadgetFlags:
    gadget_syncs: int = SECTION.flag(
        3, "Gadgets at once.", check=flag_checks.at_least_one, path="GadgetController.Syncs"
    )


def build(context, flags):
    from ccm.controllers.gadget.controller import Gadgets

    return Gadgets(flags.gadget_syncs)


MANIFEST = Manifest(
    name="gadget-controller", alias="gadget", client="gadget-controller", metric="gadget",
    follows=("gadgets",), acts=(("patch", "gadgets/status"),),
    gates=(Gate(name="Gadgets", default=True, stage="ALPHA", help="."),),
    lacks=lambda cloud: "", build=build,
)
"""

STORY = """
import json, sys
from fnmatch import fnmatch
from types import SimpleNamespace
from pathlib import Path

from ccm.app import options
from ccm.app.options import config

Path("c.yaml").write_text(
    f"{{apiVersion: {config.GROUP_VERSION}, kind: {config.KIND}, GadgetController: {{Syncs: 7}}}}"
)
chosen = config.effective(options.parse(
    ["--cloud-provider=x", "--controllers=gadget", "--config=c.yaml", "--feature-gates=Gadgets=0"]
))
told = {
    "help": options.answer(options.parse(["--help"])),
    "faults": options.faults(options.parse(["--cloud-provider=x", "--gadget-syncs=0"])),
    "sound": options.faults(chosen),
    "notices": chosen.notices(),
    "written": config.write(chosen),
}

from ccm.app import controllers, main, metrics
from ccm.base.metrics import REGISTRY
from ccm.doctor.rights import needs

metrics.describe("x")
told["early"] = [name for name in sys.modules if fnmatch(name, "ccm.controllers.*.controller")]
context = SimpleNamespace(handle=SimpleNamespace(cloud=None))
told["metrics"] = [family.name for family in REGISTRY.collect() if "gadget" in family.name]
told["started"] = [(m.alias, made.syncs) for m, made in controllers.enabled(chosen, context)]
told["needs"] = [str(need) for need in needs(chosen) if "gadget" in need.resource]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the program with the controller says."""
    home = tmp_path_factory.mktemp("fifth")
    shutil.copytree(ROOT / "ccm", home / "ccm", ignore=shutil.ignore_patterns("sandbox", "testing"))
    folder = home / "ccm" / "controllers" / "gadget"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "manifest.py").write_text(MANIFEST)
    (folder / "controller.py").write_text(
        "class Gadgets:\n    def __init__(self, syncs): self.syncs = syncs\n"
    )
    (folder / "metrics.py").write_text(
        'from ccm.base import metrics\nmetrics.counter("ccm_gadget_syncs", "Syncs.")\n'
    )
    listing = home / "ccm" / "app" / "options" / "controllers.py"
    text = listing.read_text()
    line = "    RouteFlags,\n"
    assert text.count(line) == 1
    entry = '    __import__("ccm.controllers.gadget.manifest", fromlist=["_"]).GadgetFlags,\n'
    listing.write_text(text.replace(line, line + entry))
    ran = subprocess.run(
        [sys.executable, "-c", STORY],
        cwd=home,
        env={"PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_people_are_told_of_it(told: dict[str, Any]) -> None:
    assert "Gadgets flags:\n\n      --gadget-syncs int32  (default 3)" in told["help"]
    assert "gadget-controller (gadget)" in " ".join(told["help"].split())
    assert told["faults"] == ["--gadget-syncs=0: must be 1 or more"]
    assert "GadgetController:\n  Syncs: 7\n" in told["written"]


def test_it_starts_with_its_flag_and_is_not_imported_before(told: dict[str, Any]) -> None:
    assert (told["sound"], told["notices"], told["early"]) == ([], [], [])
    assert told["started"] == [["gadget", 7]]
    assert told["metrics"] == ["ccm_gadget_syncs"]
    assert told["needs"] == ["list gadgets", "watch gadgets", "patch gadgets/status"]
