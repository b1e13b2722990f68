"""The machine controller: a VM for each Machine, and a node of it.

`create` makes VMs, `remove` ends them, `tokens` keeps the bootstrap tokens; `controller` decides
which of it is due, and keeps machine and node in step. What follows from what is decided in
`ccm.machines`.

`drain` empties nodes, each in a task of its own: `evictions` is one of them, `budgets` and
`attachments` are what it waits for.
"""
