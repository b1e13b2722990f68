"""L6: forecast of the daemon's changes to a cluster and a cloud, without making them.

No decision is made a second time here. The daemon's own controllers, wired as in the daemon, run
over a fake API server with a copy of the cluster. Their cloud client sends queries, and records
changes instead of sending them. Each recorded change is applied to the copy and to later listings
of the cloud, so that its consequences show: a deleted node leaves its load balancers and loses its
routes. The results of `ensure_load_balancer` and `create_machine` cannot be known, so their Service
and Machine stop there.

While the controllers only wait, time is skipped: a second denial comes a monitor period after the
first without a real wait. Each query is sent to the cloud once, and its answer is reused.

    timeloop    event loop that skips waiting
    cloud       cloud client that makes no change
    changes     differences as values, text and documents
    forecast    the copy of the cluster, and the run of the controllers over it

The forecast does not know:

- the result of an ensure, so the status written then;
- which of several nodes comes first where a limit lets only some through;
- whether a load balancer is reconciled before or after a node that is initialised at the same
  moment, so whether it is ensured or its members are updated;
- changes that a provider makes by itself, outside of the daemon's calls, while time is skipped.

Only queries belong here, never a decision of a controller, never a write. Two more guards protect
the copy and the cloud client: the transport refuses every request but GET, and no method declared
as a change reaches the provider.
"""
