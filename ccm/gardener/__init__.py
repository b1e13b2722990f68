"""L4: the objects of Gardener's machine-controller-manager, as its users know them.

Here, and nowhere else, stand the API group, the names, and the shapes of Machine, MachineSet,
MachineDeployment and MachineClass. `crds` writes their definitions, `views` translates between
them and the neutral terms of `ccm.machines`. Whoever reads or writes these objects beside us
(the autoscaler, dashboards, the Go programs) finds each name as it was.
"""
