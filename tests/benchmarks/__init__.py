"""Whole-process measurements; run with `python -m tests.benchmarks`."""
