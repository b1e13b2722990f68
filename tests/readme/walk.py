"""A walk through a guide, from top to bottom, in one shell."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import forkserver, servers
from tests.envtest import assets
from tests.readme import readme
from tests.readme.clouds import GuideCloud

STEP_S = 150.0
"""Time limit of a step, in seconds."""

_MARK = "END-OF-A-STEP"
_POLL_S = 0.05


def program(name: str) -> Path:
    """Return the path of kubectl or helm; skips (fails with CI set) without it."""
    shipped = assets.assets_dir() / name
    installed = shutil.which(name)
    if not shipped.is_file() and installed is None:
        servers.leave_out(f"{name} is missing; run `python -m tests.envtest.assets` first")
    return shipped if shipped.is_file() else Path(str(installed))


class Walk:
    """One reader with a shell, in a folder with the manifests of a checkout.

    Args:
        folder: empty folder, the home of the reader.
        cloud: the reader's account.
        environment: variables besides those of the cloud, such as KUBECONFIG.
    """

    def __init__(self, folder: Path, cloud: GuideCloud, environment: Mapping[str, str]) -> None:
        self.folder = folder / "checkout"
        self.folder.mkdir()
        (self.folder / "manifests").symlink_to(readme.ROOT / "manifests")
        tools = folder / "tools"
        tools.mkdir()
        for name in ("kubectl", "helm"):
            (tools / name).symlink_to(program(name))
        for name in ("kube-ccm", "kubectl-ccm"):
            forkserver.write_program(tools / name, "ccm.cli")
        for name, content in cloud.files.items():
            (self.folder / name).write_text(content)
        self._fill = cloud.fill
        self._environment = {
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "LANG": "C.UTF-8",
            "PATH": f"{tools}:{Path(sys.executable).parent}:{os.defpath}",
            **cloud.environment,
            **environment,
        }
        self._terminals: list[asyncio.subprocess.Process] = []
        self._steps = 0
        self._faults: list[str] = []

    async def follow(self, steps: Sequence[readme.Step]) -> None:
        """Do the steps in order, up to a command that fails.

        Raises:
            AssertionError: a command failed, or some did not print what the page shows.
        """
        shell = await self._open("bash", stdin=asyncio.subprocess.PIPE)
        assert shell.stdin is not None
        shell.stdin.write(b"set -e\n")
        try:
            for step in steps:
                if step.file:
                    file = self.folder / step.file
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(self._filled(step.text))
                elif not step.needs:
                    await self._run(shell, step)
            assert not self._faults, "\n".join(self._faults)
        finally:
            for process in [*self._terminals, shell]:
                await _end(process)
            self._terminals.clear()

    async def _run(self, shell: asyncio.subprocess.Process, step: readme.Step) -> None:
        assert shell.stdin is not None
        script = self.folder.parent / f"step-{self._steps}.sh"
        self._steps += 1
        script.write_text(self._filled(step.text))
        if step.text.startswith(readme.TERMINAL):
            printed = await self._run_beside(script, step.promised)
            exports = re.findall(r"^ *(export \w+=.*)$", printed, re.MULTILINE)
            shell.stdin.write("".join(f"{line}\n" for line in exports).encode())
            return
        # A command that reads standard input would read the next steps.
        shell.stdin.write(f". {script} < /dev/null 2>&1\necho {_MARK}\n".encode())
        printed = await self._read_step(shell, step)
        if line := readme.broken(step.promised, printed):
            self._faults.append(f"{step.text}does not print {line!r}, but:\n{printed}")

    async def _read_step(self, shell: asyncio.subprocess.Process, step: readme.Step) -> str:
        assert shell.stdout is not None
        lines: list[str] = []
        try:
            async with asyncio.timeout(STEP_S):
                while line := (await shell.stdout.readline()).decode():
                    if line == f"{_MARK}\n":
                        return "".join(lines)
                    lines.append(line)
        except TimeoutError:
            lines.append("(no end)")
        self._faults.append(f"{step.text}failed:\n{''.join(lines)}")
        raise AssertionError("\n".join(self._faults))

    async def _run_beside(self, script: Path, promised: Sequence[str]) -> str:
        """Run a script in a terminal of its own; return its output once it has the promised one."""
        output = script.with_suffix(".out")
        with output.open("wb") as sink:
            terminal = await self._open("bash", "-e", script, stdout=sink)
        self._terminals.append(terminal)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STEP_S):
                while terminal.returncode is None and readme.broken(promised, output.read_text()):
                    await asyncio.sleep(_POLL_S)
        printed = output.read_text()
        if line := readme.broken(promised, printed):
            raise AssertionError(f"{script.read_text()}does not print {line!r}, but:\n{printed}")
        return printed

    async def _open(
        self, *words: str | Path, stdin: int = asyncio.subprocess.DEVNULL, stdout: object = None
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *words,
            cwd=self.folder,
            env=self._environment,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE if stdout is None else stdout,  # type: ignore[arg-type]
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # so that its background processes end with it
        )

    def _filled(self, text: str) -> str:
        for place, value in self._fill.items():
            text = text.replace(place, value)
        return text


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):  # all has ended
        os.killpg(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
