"""L6: forecast of the daemon's changes to a cluster and a cloud, without making them.

This package does not duplicate the decisions of controllers. The daemon's own controllers run over
a fake API server with a copy of the cluster. Their cloud client sends queries to the cloud, and
records changes instead of sending them. The controllers' writes change the copy, and recorded route
changes are applied to later listings of routes. So consequences show: a deleted node leaves its
load balancers and loses its routes. The results of `ensure_load_balancer` and `create_machine`
cannot be predicted, so the forecast for the Service or Machine ends with the call. A driver with
`CreationCheck` is asked whether it would refuse a creation.

While the controllers only wait, time is skipped. Each query is sent to the cloud once, and its
answer is reused, also for the second query about a missing instance. With `wait`, `forecast` sends
that second query after a wait in real time.

    timeloop        event loop that skips waits
    cloud_client    cloud client that makes no change
    changes         changes as values, text and documents
    forecast        the copy of the cluster, and the run of the controllers over it

The forecast cannot predict:

- the result of `ensure_load_balancer`, and so the status that would be written after the call;
- the order of nodes, and so which nodes are deleted if a limit allows only some deletions;
- whether a load balancer is reconciled before or after a node that is initialised at the same
  time, and so whether the load balancer is ensured or only its members are updated;
- changes that a provider makes by itself, outside of the daemon's calls, while time is skipped.

The forecast sends only queries. Two guards enforce that: the transport to the real API server
refuses every request but GET, and the cloud client refuses to pass a change to the provider.
"""
