"""L4: what a machine is, whichever objects describe it: neutral views, and plans over them.

A front (`ccm.gardener`) translates its objects into `views` and says in a `Rules` value how its
labels, annotations and finalizers are called; no such name stands in here. `creation`, `joining`,
`nodesync`, `orphans`, `overshoot`, `replicas`, `setbacks`, `tokens`, `userdata` and `statuses`
decide, without a clock, I/O or await, and so does `rollout` with `scaling`, `bounds`, `revisions`,
`progress` and `autoscaler`, over the views of `fleet`; `listing` shares the listings of the cloud
among those who ask for the same.
"""
