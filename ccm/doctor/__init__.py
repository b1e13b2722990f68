"""L6: examines a cluster, a cloud and a provider before or during operation of the daemon.

`examination` has the table of all checks. Each check is a function that returns a
`case.CheckFinding` with advice: in `reach` (API server and identity), `permissions`, `daemons`
(Deployment, Lease, other managers), `cluster`, `provider`, `nodes` and `machines`. `start_forecast`
comes first: it calls `ccm.planning` to list what a start of the daemon would delete. `permissions`
has the only table of the daemon's permissions. `explain` gives the cause of an object's state.

Allowed here: reads. Not allowed: a write to the cluster or the cloud; printing and the command
line, which belong to `ccm.cli`.
"""

CHECK_LIMIT_S = 15.0
"""Default time limit of one check, in seconds."""


class ExaminationError(Exception):
    """A command or an examination is not possible; the message has the reason and advice.

    Attributes:
        check: the check that reports the same problem; empty = none.
    """

    def __init__(self, message: str, *, check: str = "") -> None:
        super().__init__(message)
        self.check = check
