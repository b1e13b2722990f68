"""API group of Gardener's machine-controller-manager (MCM), compatible with MCM and other programs.

Only this package contains the group's names (`names`), the wire types of Machine, MachineSet,
MachineDeployment and MachineClass (`types`), and their CustomResourceDefinitions (`crds`).
`decoding` converts the objects to the hub types of `ccm.model.machines`; `codec` makes the patches
that write them. Other readers and writers of the objects (the autoscaler, dashboards, Gardener's
programs) depend on every name.
"""
