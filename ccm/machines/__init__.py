"""L4: machine management, independent of the API group: plans over hub types, and a codec.

A `Codec` decodes an API group to the hub types of `ccm.model.machines`, names its labels,
annotations and finalizers, and makes its patches. No other module here names them. `caches`,
`driver` (calls, listings, and the ownership of VMs) and `crdguard` do I/O. All other modules decide
without a clock or await: `creation`, `health`, `preservation`, `deletion` and `drain` about one
machine, `replicas` about a set, `rollout` about a deployment.
"""
