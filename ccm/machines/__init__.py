"""L4: what a machine is, whichever objects describe it: neutral views, and plans over them.

A front (`ccm.gardener`) translates its objects into `views` and says in a `Settings` value how its
labels, annotations and finalizers are called; no such name stands in here. All but `listing`, which
shares the listings of the cloud among those who ask for the same, decides without a clock, I/O or
await: `creation`, `health`, `preservation`, `deletion` and `drain` about one machine, `replicas`
about a set, `rollout` over the views of `fleet` about a deployment.
"""
