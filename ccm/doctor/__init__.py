"""L6: examines a cluster, a cloud and a provider before or during operation of the daemon.

`examination` has the table of all checks. A check is a function that returns a `case.CheckFinding`
with advice. The modules with checks are `reach` (API server and identity), `permissions`, `daemons`
(Deployment, Lease, other managers), `cluster`, `journal`, `provider`, `nodes`, `machines` and
`start_forecast`. `start_forecast` runs first: with `ccm.planning` it lists the deletions that a
start of the daemon would cause. `permissions` has the only table of the daemon's permissions.
`explain` finds the cause of an object's state from the facts that `explain_facts` gathers.

This package only reads from the cluster and the cloud; the check of persistent storage writes to
that storage. Printing and the command line belong to `ccm.cli`.
"""

CHECK_LIMIT_S = 15.0
"""Default time limit of one check, in seconds."""


class ExaminationError(Exception):
    """A command cannot examine the cluster; the message has the reason and advice.

    Attributes:
        check: name of the check that reports the same problem; empty = none.
    """

    def __init__(self, message: str, *, check: str = "") -> None:
        super().__init__(message)
        self.check = check
