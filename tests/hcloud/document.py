"""Validation of HTTP traffic against the vendor's OpenAPI document.

The public original is at https://docs.hetzner.cloud (3.1); a mirror in 3.0, named `hcloud.json`
in the folder of `tests.documents`, is the repository MaximilianKoestler/hcloud-openapi.
"""

from __future__ import annotations

from typing import Any

from tests.documents import Document


def _with_nulls(document: Any) -> Any:
    """Null where it is allowed: of OpenAPI 3.1 the mirror made `allOf` with `nullable` beside it.

    Read strictly that allows no null, for what stands in `allOf` does not. Those are the only
    places that are read otherwise than they are written.
    """
    return _mended(document, document["components"]["schemas"])


def _mended(node: Any, schemas: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_mended(one, schemas) for one in node]
    if not isinstance(node, dict):
        return node
    match node:
        case {"allOf": [{"$ref": str(ref)}], "nullable": True}:
            node = {**schemas[ref.rpartition("/")[2]], "nullable": True}
    return {key: _mended(value, schemas) for key, value in node.items()}


DOCUMENT = Document(
    "hcloud.json", host="https://api.hetzner.cloud", prefix="/v1", mended=_with_nulls
)
load = DOCUMENT.load
violations = DOCUMENT.violations
