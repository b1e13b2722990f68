"""The machine deployment controller: replaces or updates machines, within bounds.

`ccm.machines.rollout` makes the plans; `controller` triggers them and carries them out.
"""
