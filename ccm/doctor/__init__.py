"""L6: looks at a cluster, a cloud and a provider before or while the daemon works there.

`examination` has the table of all checks; each is a function in `reach` (who and where the API
server is), `rights`, `daemons` (its Deployment, its Lease, other managers), `cluster`, `provider`,
`nodes` and `machines`, and answers with a `case.Finding` and advice. `outlook` comes first: it asks
`ccm.planning` what starting the daemon would delete. `rights.needs` is the one table of the
permissions of the daemon. `asking` and `explain` say why one object is as it is.

What may enter: questions. What must never enter: a write, to the cluster or to the cloud;
printing and the command line, which are `ccm.cli`'s.
"""

LIMIT_S = 15.0
"""Longest time of one check unless a flag says otherwise, in seconds."""


class Refused(Exception):
    """A command or an examination cannot be made; the message says why, and what to do.

    Attributes:
        check: the check that finds the same; empty if none does.
    """

    def __init__(self, message: str, *, check: str = "") -> None:
        super().__init__(message)
        self.check = check
