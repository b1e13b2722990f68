"""User data that a cloud quotes in its refusals."""

from __future__ import annotations

import base64
import json
import random
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm.base import redact
from ccm.cloud import Cloud, errors
from ccm.cloud.calls import quotes
from ccm.cloud.calls.handle import Handle
from ccm.cloud.machines import Credentials, Driver, Identity, MachineDriver, MachineRequest
from ccm.cloud.operation import Operation

WHO = Identity(
    cluster="ours", pool="workers-of-the-shop", name="shop-workers-7f9c4-x2k9p", uid="u-1"
)
DATA = """#cloud-config
hostname: shop-workers-7f9c4-x2k9p
write_files:
- path: /etc/join
  content: |
    kubeadm join --token letter.sonlyletterswith --hash sha256:1234
users: [{name: ops, passwd: "correct horse battery"}]
"""


def request(data: bytes = DATA.encode(), **spec: Any) -> MachineRequest:
    return MachineRequest(
        identity=WHO, provider_spec=spec, credentials=Credentials({}), user_data=data
    )


def operation(req: MachineRequest) -> Operation:
    return Operation(
        verb="create_machine", subject="u-1", arguments={"req": req}, deadline_s=60.0, change=True
    )


def shown(text: str, req: MachineRequest) -> str:
    error = errors.InvalidArgument(text)
    quotes.mask(error, operation(req))
    return str(error)


QUOTATIONS: dict[str, Callable[[str], str]] = {
    "whole": str,
    "json": lambda text: json.dumps(text)[1:-1],
    "repr": lambda text: repr(text)[1:-1],
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64-cut": lambda text: base64.b64encode(text.encode()).decode()[40:110],
    "head": lambda text: text[:40],
    "middle": lambda text: text[60:150],
    "tail": lambda text: text[-40:],
}


@pytest.mark.parametrize("where", ["user_data", "userData"])
@pytest.mark.parametrize("form", QUOTATIONS)
def test_a_quotation_is_masked(form: str, where: str) -> None:
    quoted = QUOTATIONS[form](DATA)
    req = request() if where == "user_data" else request(b"", userData=DATA)

    text = shown(f"POST /servers: bad user data: {quoted} (at 3)", req)

    assert text.startswith("POST /servers: bad user data: ")
    assert text.endswith(" (at 3)")
    assert redact.MASK in text
    for piece in (quoted[at : at + quotes.PIECE] for at in range(len(quoted) - quotes.PIECE)):
        assert piece not in text or piece[1:-1] in WHO.name
    for word in ("write_files", "kubeadm", "horse"):
        assert word not in text


@pytest.mark.parametrize(
    "text",
    [
        "server shop-workers-7f9c4-x2k9p of pool workers-of-the-shop: name is already used",
        "quota of 10 servers is used up",
        "create_machine took longer than 300 s",
        "hostname: is bad",
    ],
)
def test_other_words_stay(text: str) -> None:
    error = errors.InvalidArgument(text)

    assert not quotes.mask(error, operation(request()))
    assert str(error) == text


@given(st.text(min_size=60), st.integers(0, 40), st.integers(quotes.PIECE, 60), st.text())
def test_every_piece_is_found_wherever_it_is_cut(
    data: str, start: int, size: int, around: str
) -> None:
    piece = data[start : start + size]
    if len(piece) < quotes.PIECE or piece in around + around:
        return

    assert piece not in shown(f"{around}{piece}{around}", request(data.encode()))


@pytest.mark.parametrize("data", ["ab" * (1 << 19), " " * (1 << 20), "random"])
@pytest.mark.parametrize(
    "text", ["ab" * 9000, " " * 18000, "abababab random "], ids=lambda value: repr(value)[:24]
)
def test_hostile_user_data_costs_little(data: str, text: str) -> None:
    if data == "random":
        data = random.Random(1).randbytes(1 << 19).hex()
    before = time.process_time()

    shown(text * (1 + 9000 // len(text)), request(data.encode()))

    assert time.process_time() - before < 4


class Quoting(Driver[None]):
    """Refuses a creation in the words of its request, or in its own with those as the cause."""

    def __init__(self, *, in_cause: bool) -> None:
        super().__init__(None)
        self._in_cause = in_cause

    async def create_machine(self, req: MachineRequest) -> Any:
        error = RuntimeError(f"rejected: {req.user_data.decode()}")
        if self._in_cause:
            raise errors.Internal("rejected") from error
        raise error


@pytest.mark.parametrize("in_cause", [False, True])
async def test_neither_the_error_nor_its_causes_nor_the_history_quote_user_data(
    in_cause: bool,
) -> None:
    driver: Any = Quoting(in_cause=in_cause)
    handle = Handle(Cloud(name="fake", machines=driver))

    with pytest.raises(errors.Internal) as caught:
        await handle.call(MachineDriver.create_machine, request())

    (call,) = handle.history.of(("machine", WHO.name))
    for text in ("".join(traceback.format_exception(caught.value)), call.text):
        assert "rejected" in text
        assert "correct horse" not in text
        assert "sonlyletterswith" not in text


def test_a_request_shows_no_user_data() -> None:
    assert "correct horse" not in repr(request(userData=DATA))
