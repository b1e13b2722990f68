"""ConfigMap: small texts by key. Not modelled completely, so it is patched."""

from __future__ import annotations

from ccm.model.meta import KubeObject, ObjectMeta


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    """A config map."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None
