"""CustomResourceDefinition: only its metadata."""

from __future__ import annotations

from ccm.model.meta import KubeObject, ObjectMeta


class CustomResourceDefinition(KubeObject, frozen=True, kw_only=True):
    """A CustomResourceDefinition."""

    metadata: ObjectMeta
