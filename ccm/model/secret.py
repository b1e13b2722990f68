"""Secret: small data by key. It never shows its data, wherever it is printed."""

from __future__ import annotations

from ccm.model.meta import KubeObject, ObjectMeta


class Secret(KubeObject, frozen=True, kw_only=True):
    """A Secret; its data are decoded, as they are in the API they stand in base64."""

    metadata: ObjectMeta
    type: str = ""
    data: dict[str, bytes] | None = None

    def __repr__(self) -> str:
        return f"Secret({self.key}: {', '.join(sorted(self.data or ()))})"
