"""L4: machine management, independent of the API group: plans over hub types, and a codec.

A `Codec` decodes the objects of an API group to the hub types of `ccm.model.machines`, and makes
patches for them. Only the codec contains the group's labels, annotations and finalizers. The
modules `caches`, `driver` (calls, listings, and the ownership of VMs), `crdguard` and `discovery`
do I/O. All other modules make decisions without a clock or await: `creation`, `health`,
`preservation`, `deletion` and `drain` for one machine, `replicas` for a set, `rollout` for a
deployment.
"""
