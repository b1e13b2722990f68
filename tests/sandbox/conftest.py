"""Where a sandbox is started, and which API server it takes."""

from __future__ import annotations
