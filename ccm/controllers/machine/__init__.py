"""The machine controller: a VM and a node for each Machine.

`create` creates VMs. `termination` deletes machines, in a work queue of its own. `health` syncs
machine and node, preserves failed machines, and updates machines in place. `tokens` manages the
bootstrap tokens. `freeze` stops the controller while an API server is unreachable. `controller`
reconciles a machine with these modules, and `context` contains the objects that they share.
`ccm.machines` makes the decisions.

`drain` starts drains of nodes, each in a task of its own; `evictions` is the drain of one node.
"""
