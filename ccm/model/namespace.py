"""Namespace: only that it is there, and its UID."""

from __future__ import annotations

from ccm.model.meta import KubeObject, ObjectMeta


class Namespace(KubeObject, frozen=True, kw_only=True):
    """A namespace."""

    metadata: ObjectMeta
