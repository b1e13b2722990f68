"""Decoding a big list beside the plain JSON parser: ratios of one process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from ccm.kube import decode
from ccm.kube.client import PAGE_SIZE
from ccm.kube.resources import NODES


def node_object(number: int) -> dict[str, Any]:
    """A Node of about 5.7 KB, as a kubelet reports it."""
    images = [
        {"names": [f"registry.example/team/image-{n}@sha256:{n:064x}"], "sizeBytes": 10_000_000 + n}
        for n in range(20)
    ]
    conditions = [
        {
            "type": name,
            "status": "False",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": f"KubeletHas{name}",
            "message": f"kubelet reports {name}",
        }
        for name in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "Network")
    ]
    return {
        "metadata": {
            "name": f"node-{number}",
            "uid": f"00000000-0000-0000-0000-{number:012d}",
            "resourceVersion": str(number),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {f"example.com/label-{n}": f"value-{n}" for n in range(12)},
            "annotations": {f"example.com/annotation-{n}": f"value-{n}" for n in range(5)},
            "managedFields": [
                {"manager": "kubelet", "fieldsV1": {f"f:{n}": {} for n in range(40)}}
            ],
        },
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": "sim://1"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": conditions,
            "images": images,
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
            "nodeInfo": {"kernelVersion": "6.1", "osImage": "Linux", "architecture": "amd64"},
        },
    }


def node_list(count: int) -> bytes:
    return json.dumps({"items": [node_object(number) for number in range(count)]}).encode()


async def measure() -> dict[str, float]:
    """How much faster than `json.loads` a list is decoded, and how long a page takes."""
    body, page = node_list(2000), node_list(PAGE_SIZE)
    return {
        "times_faster_than_json": round(_best_s(json.loads, body) / _best_s(_decode, body), 1),
        "page_ms": round(_best_s(_decode, page) * 1000, 1),
    }


def _best_s(work: Callable[[bytes], Any], body: bytes) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        work(body)
        best = min(best, time.process_time() - started)
    return best


def _decode(body: bytes) -> Any:
    return decode.decode_page(NODES, body)
