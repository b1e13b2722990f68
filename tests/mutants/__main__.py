"""`python -m tests.mutants [ID, room or pattern ...]`: whether tests catch the faults."""

from __future__ import annotations

import argparse
import sys

from tests.mutants import rows, runner


def main() -> int:
    """Try the faults that are named, or all; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("word", nargs="*", help="an ID, a room, or a pattern such as 'node-*'")
    parser.add_argument("-j", "--workers", type=int, help="how many at once; default: one a core")
    given = parser.parse_args()
    try:
        mutants = rows.chosen(rows.load(), given.word)
    except rows.InvalidMutant as invalid:
        parser.error(str(invalid))
    return runner.run_all(mutants, workers=given.workers)


if __name__ == "__main__":
    sys.exit(main())
