"""What others said is fit for everybody before it is written; what others named stays."""

from __future__ import annotations

import json

from ccm.kube import outgoing


def test_half_a_character_is_mended() -> None:
    sent = outgoing.encode({"status": {"conditions": [{"message": "no \udcff"}]}})

    assert json.loads(sent) == {"status": {"conditions": [{"message": "no ?"}]}}


def test_an_annotation_of_that_name_is_left_as_it_is() -> None:
    body = {"metadata": {"annotations": {"note": "token: abcdefgh"}}, "message": "token: abcdefgh"}

    sent = json.loads(outgoing.encode(body))

    assert sent["metadata"] == body["metadata"]
    assert sent["message"] == "token: [redacted]"
