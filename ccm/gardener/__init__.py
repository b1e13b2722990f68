"""Objects of Gardener's machine-controller-manager, as its users know them.

Here, and nowhere else, stand the API group, the names, and the shapes of Machine, MachineSet,
MachineDeployment and MachineClass: `names`, `types` and their definitions (`crds`). `codec`
converts them to the hub types of `ccm.model.machines` and back. Other readers and writers of these
objects (the autoscaler, dashboards, the Go programs) find each name as it was.
"""
