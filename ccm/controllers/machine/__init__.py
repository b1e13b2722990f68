"""The machine controller: a VM and a node for each Machine.

`create` creates VMs, and `remove` deletes machines, in a work queue of its own. `health` syncs
machine and node, preserves failed machines, and updates machines in place. `tokens` manages the
bootstrap tokens, and `freeze` stops the controller while an API server is unreachable. `controller`
dispatches to these parts, and `context` holds what they share. `ccm.machines` makes their
decisions.

`drain` drains nodes, each in a task of its own; `evictions` is one such drain.
"""
