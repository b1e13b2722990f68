"""Objects of Gardener's machine-controller-manager, unchanged for their other users.

Only this package knows the API group, the names, and the shapes of Machine, MachineSet,
MachineDeployment and MachineClass: `names`, `types` and their definitions (`crds`). `codec`
converts them to the hub types of `ccm.model.machines` and back. Other readers and writers of these
objects (the autoscaler, dashboards, the Go programs) depend on every name.
"""
