"""The machine safety controller: VMs without a Machine, and nodes without one."""
