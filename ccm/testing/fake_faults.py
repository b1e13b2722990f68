"""What goes wrong in a fake of a cloud's API on request: which call, how often, and how."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

Kind = Literal["error", "drop", "garbage", "empty", "hang", "novelty"]


@dataclass(kw_only=True)
class Fault:
    """A fault of some calls.

    Attributes:
        kind: an error of the API; a connection that is cut; an answer that is no JSON, or nothing
            at all; no answer; an answer with fields and states of the future.
        operation: pattern of the calls, such as `POST /servers*`.
        skip: so many of them go well first.
        count: so many go wrong then; 0 = all.
        applied: the call takes effect before its answer is lost.
        status: of the answer; 0 = the one of the code.
        code: the API's word for the error, where it has words.
        message: the API's words for people.
    """

    kind: Kind = "error"
    operation: str = "*"
    skip: int = 0
    count: int = 0
    applied: bool = False
    status: int = 0
    code: str = "server_error"
    message: str = "as a test wants it"


class Script:
    """The faults that are to come, the newest last."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """One more fault."""
        self.faults.append(fault)

    def clear(self) -> None:
        """No more faults."""
        self.faults.clear()

    def judge(self, operation: str) -> Fault | None:
        """What becomes of a call; counts it."""
        for fault in self.faults:
            if not fnmatchcase(operation, fault.operation):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            if fault.count:
                fault.count -= 1
                if not fault.count:
                    self.faults.remove(fault)
            return fault
        return None


def novel(answer: Any, *, of_server: str, status: str) -> Any:
    """An answer of the future: fields that nobody has documented, states nobody has heard of.

    Args:
        answer: as it would be.
        of_server: a field that servers alone have.
        status: of each of them.
    """
    if isinstance(answer, list):
        return [novel(one, of_server=of_server, status=status) for one in answer]
    if not isinstance(answer, dict):
        return answer
    found = {
        key: value if key == "labels" else novel(value, of_server=of_server, status=status)
        for key, value in answer.items()
    }
    if of_server in found:
        found["status"] = status
    found["x_future"] = {"colour": "octarine"}
    return found
