"""kubectl as a process, and the comparison of its output for two servers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.waiting import DEADLINE_S


class Kubectl:
    """kubectl against one server, with a cache folder of its own."""

    def __init__(self, program: Path, kubeconfig: Path, home: Path) -> None:
        self._program = program
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "HOME": str(home)}

    def run(self, *words: str, stdin: Any = None) -> tuple[int, str]:
        """Exit status and output (both streams) of one command."""
        done = subprocess.run(
            [self._program, *words],
            input=None if stdin is None else json.dumps(stdin),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode, done.stdout

    def __call__(self, *words: str, stdin: Any = None) -> str:
        """The output of a command that must succeed."""
        status, output = self.run(*words, stdin=stdin)
        assert status == 0, output
        return output

    @contextlib.contextmanager
    def following(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Run a command until the block ends."""
        with subprocess.Popen(
            [self._program, *words],
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
        ) as process:
            try:
                yield process
            finally:
                process.terminate()


# Values that differ between two servers, and their placeholders.
DIFFERENCES = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
    (r'(resourceVersion"?: )"\d+"', r"\1N"),
    (r"(\s)\d+s\b *", r"\1AGE "),
    (r"\b10\.96\.\d+\.\d+\b *", "ADDRESS "),
    (r"(\bCLUSTER-IP|<none>|\bNone) +", r"\1 "),
    (r"\b3[0-2]\d{3}\b", "NODEPORT"),
    # Errors have other texts, and sometimes name another field.
    (r"(is invalid: ).*", r"\1WHY"),
    (r"(Error from server \(BadRequest\): ).*", r"\1WHY"),
)


_ITS_OWN_LOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ ")
"""What kubectl logs, such as that a time limit ended a watch early: a matter of luck."""


def transcript(
    kubectl: Kubectl, script: Sequence[Sequence[Any]], *, drop: str = r"(?!)"
) -> list[str]:
    """What kubectl prints for each command of a script, without what must differ.

    A command is its words, and maybe an object for its standard input. What matches
    `drop` is left out.
    """
    lines = []
    for step in script:
        words = [word for word in step if isinstance(word, str)]
        stdin = None if len(words) == len(step) else step[-1]
        status, output = kubectl.run(*words, stdin=stdin)
        output = re.sub(drop, "", output)
        for pattern, stand_in in DIFFERENCES:
            output = re.sub(pattern, stand_in, output)
        said = [line for line in output.splitlines() if not _ITS_OWN_LOG.match(line)]
        lines += [f"$ {' '.join(words)}", *said, f"[{status}]"]
    return lines
