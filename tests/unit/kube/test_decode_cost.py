"""What a decoded list holds in memory, beside the plain JSON parser."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

from ccm.kube import decode
from ccm.kube.resources import NODES
from tests.benchmarks.decoding import node_list


def test_what_is_kept_is_less_than_a_third() -> None:
    body = node_list(500)

    assert _held_bytes(_decode, body) < _held_bytes(json.loads, body) / 3


def _held_bytes(work: Callable[[bytes], Any], body: bytes) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        held = work(body)
        size, _ = tracemalloc.get_traced_memory()
        assert held
        return size
    finally:
        tracemalloc.stop()


def _decode(body: bytes) -> Any:
    return decode.decode_page(NODES, body)
