"""L6: looks at a cluster, a cloud and a provider before or while the daemon works there.

`examination` has the order of all checks; each is a function in `reach` (who and where the
API server is), `rights`, `deployment`, `leases`, `webhooks`, `provider`, `nodes`, `services` and
`machines`, and answers with a `finding`: what was found, and what a person can do about it.
`outlook` comes first: what starting the daemon would delete, as `ccm.planning` finds it out.
`needs` is the one table of what the daemon is allowed to do, `catalogue` describes providers
without opening them.

What may enter: questions. What must never enter: a write, to the cluster or to the cloud;
printing and the command line, which are `ccm.cli`'s.
"""

LIMIT_S = 15.0
"""Longest time of one check unless somebody says otherwise, in seconds."""
