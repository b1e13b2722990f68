"""Machines as their set sees them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ccm.machines.replicas import Member
from ccm.machines.views import Phase

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """That long after `NOW`."""
    return NOW + timedelta(seconds=seconds)


def member(name: str, **more: Any) -> Member:
    """A machine that runs."""
    return Member(key=f"default/{name}", **{"created": NOW, "phase": Phase.RUNNING, **more})
