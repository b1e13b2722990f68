"""The machine controller: a VM for each Machine, and a node of it.

`create` makes VMs, `remove` ends them, in a queue of its own; `health` keeps machine and node in
step, preserves failed machines, and updates machines in place; `tokens` keeps the bootstrap tokens,
`freeze` leaves machines alone while an API server is away. `controller` decides which of them is
due, and `context` holds what they share. `ccm.machines` decides what each of them does.

`drain` empties nodes, each in a task of its own: `evictions` is one of them.
"""
