"""The machine controller: a VM for each Machine, and a node of it.

`create` makes VMs, `remove` ends them, `tokens` keeps the bootstrap tokens; `controller` decides
which of it is due, and keeps machine and node in step. What follows from what is decided in
`ccm.machines`.
"""
