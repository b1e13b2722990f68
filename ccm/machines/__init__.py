"""L4: what a machine is, whatever API group describes it: plans over hub types, and a codec.

A `Codec` decodes an API group to the hub types of `ccm.model.machines`, names its labels,
annotations and finalizers, and makes its patches; no such name stands in here. `caches`, `driver`
(calls, listings, and the ownership of VMs) and `crdguard` do I/O. All else decides without a clock
or await: `creation`, `health`, `preservation`, `deletion` and `drain` about one machine, `replicas`
about a set, `rollout` about a deployment.
"""
