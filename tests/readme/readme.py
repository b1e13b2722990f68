"""The blocks of the README files and guides: files, commands, and their expected output.

A block of `sh` is run as it stands, unless its first line says that it needs something that no test
has (`MARKS`), which its reader is told by the same line. A block with a title is a file. A block of
`text` after commands is what they print, among other lines; `…` stands for what is not promised.

In a guide, commands below the line `# in a terminal of its own` run beside all others, which get
the variables that they print as `export NAME=VALUE`. A fence may have the attribute `on="NAME"`:
the block is only for the cloud of that name. So one page can be for several clouds.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PAGES = (
    "README.md",
    "manifests/guides/commands.md",
    "manifests/guides/versions.md",
    "providers/README.md",
    "manifests/README.md",
    "ccm/README.md",
)
"""In the order in which a newcomer meets them."""

MARKS = (
    "a container engine",
    "a cluster that runs Pods",
    "a published release",
    "a real cloud",
)
"""Requirements of blocks that no test can meet."""

_GUIDES = "manifests/guides"
ON_ALL = ("hcloud", "openstack", "stackit")

GUIDES: Mapping[str, Sequence[str]] = {
    f"{_GUIDES}/README.md": (),
    f"{_GUIDES}/quick-start-hetzner.md": ("hcloud",),
    f"{_GUIDES}/quick-start-openstack.md": ("openstack",),
    f"{_GUIDES}/quick-start-stackit.md": ("stackit",),
    f"{_GUIDES}/quick-start-sim.md": (),
    f"{_GUIDES}/load-balancers.md": ON_ALL,
    f"{_GUIDES}/moving.md": (*ON_ALL, "gardener", "kubermatic"),
    f"{_GUIDES}/machines.md": (),
    f"{_GUIDES}/autoscaler.md": (),
    f"{_GUIDES}/metrics.md": ("hcloud",),
    f"{_GUIDES}/high-availability.md": ("hcloud",),
    f"{_GUIDES}/upgrade.md": ("hcloud",),
}
"""Guide -> its walks: names of clouds, or of `CLOUD_OF`; empty: without a cluster."""

SYMPTOMS = f"{_GUIDES}/troubleshooting.md"
"""Guide whose commands are run by the test that causes the symptoms."""

CLOUD_OF = {"gardener": "stackit", "kubermatic": "hcloud"}
"""Walk -> its cloud, if it has another name."""

INSTALLED = {
    **{(f"{_GUIDES}/load-balancers.md", walk): walk for walk in ON_ALL},
    **{(f"{_GUIDES}/{name}.md", "hcloud"): "hcloud" for name in ("high-availability", "upgrade")},
    **{(f"{_GUIDES}/moving.md", walk): "" for walk in CLOUD_OF},
}
"""Walks whose reader has followed the quick start of the cloud, up to its Service -> the walk of
the quick start whose cluster they share; empty: none, because they end in another state."""

WORLDS: Mapping[str, str] = {f"{_GUIDES}/moving.md": "tests/readme/moving.md"}
"""Guide -> page whose steps make the cluster in which the guide begins."""

TERMINAL = "# in a terminal of its own\n"
"""First line of commands that run beside the others."""

_BLOCK = re.compile(r'^( *)```(\w+)((?: \w+="[^"]*")*)\n(.*?)^ *```$', re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_NEEDS = re.compile(r"# needs (.+)\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A block that its reader acts on.

    Attributes:
        text: commands, or the content of the file.
        file: its name; empty: commands.
        on: name of the cloud that it is for; empty: all.
        needs: what has to be there that no test has; empty: nothing.
        promised: lines that the commands print, in this order.
    """

    text: str
    file: str = ""
    on: str = ""
    needs: str = ""
    promised: Sequence[str] = ()


def text(name: str = "README.md") -> str:
    """The whole of one of them."""
    return (ROOT / name).read_text()


def providers() -> str:
    """The page for authors of providers."""
    return text("providers/README.md")


def files() -> dict[str, str]:
    """File name -> content of each named block for that author."""
    return {step.file: step.text for step in steps(providers()) if step.file}


def steps(page: str) -> list[Step]:
    """Files and commands of a page, from top to bottom."""
    found: list[Step] = []
    promised: tuple[str, ...] = ()
    for indent, language, words, raw in reversed(_BLOCK.findall(page)):
        block = textwrap.dedent(raw) if indent else raw
        attributes = dict(_ATTRIBUTE.findall(words))
        on = attributes.get("on", "")
        if file := attributes.get("title"):
            found.append(Step(text=block, file=file, on=on))
        elif language == "sh":
            needs = _NEEDS.match(block)
            needed = needs[1] if needs else ""
            found.append(Step(text=block, on=on, needs=needed, promised=promised))
        promised = tuple(block.splitlines()) if language == "text" else ()
    return found[::-1]


def languages(page: str) -> set[str]:
    """Return the languages of all blocks of a page.

    Raises:
        ValueError: a fence has an unknown form, so that its block would be overlooked.
    """
    found = [language for _, language, _, _ in _BLOCK.findall(page)]
    if page.count("```") != 2 * len(found):
        raise ValueError("a fence starts its line, has a language, and attributes in quotes")
    return set(found)


def steps_of_walk(page: str, walk: str) -> list[list[Step]]:
    """Return the steps of a walk, one list for each page.

    The page that its reader has followed before comes first. Other walks in the cluster of a quick
    start come before its last steps, which remove kube-ccm.
    """
    pages = [text(page)]
    if (page, walk) in INSTALLED:
        pages.insert(0, _parts(_quick_start(walk), "## .*Create a Service")[0])
    elif page == _quick_start(walk):
        start, end = _parts(page, "To remove kube-ccm as well:")
        shared = [name for (name, _), other in INSTALLED.items() if other == walk]
        pages = [start, *map(text, shared), end]
    if page in WORLDS:
        pages.insert(-1, text(WORLDS[page]))
    return [[step for step in steps(part) if step.on in ("", walk)] for part in pages]


def _quick_start(walk: str) -> str:
    """Return the quick start of the cloud of a walk; empty: the walk has no cloud."""
    walks = (CLOUD_OF.get(walk, walk),)
    return next((page for page in GUIDES if "quick-start" in page and GUIDES[page] == walks), "")


def _parts(page: str, line: str) -> list[str]:
    """Return the parts of a page before a line and from it on."""
    return re.split(rf"^(?={line}$)", text(page), flags=re.MULTILINE)


def broken(promised: Sequence[str], said: str) -> str:
    """Return the first expected line that is missing after the former ones, or "".

    The number of spaces between words does not count: columns are as wide as their contents.
    """
    lines = iter(" ".join(line.split()) for line in said.splitlines())
    for line in promised:
        pattern = ".*".join(map(re.escape, " ".join(line.split()).split("…")))
        if not any(re.fullmatch(pattern, one) for one in lines):
            return line
    return ""


def script(page: str, mark: str) -> str:
    """Join the runnable steps of a page into one script, which prints `mark` after each."""
    lines = ["set -e"]
    for step in steps(page):
        if step.file:
            lines += [f'mkdir -p "$(dirname {step.file})"', f"cat > {step.file} <<'{mark}'"]
            lines += [step.text + mark]
        elif not step.needs:
            lines += [step.text, f"echo {mark}"]
    return "\n".join(lines) + "\n"
