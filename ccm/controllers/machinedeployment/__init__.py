"""The machine deployment controller: replaces machines, or updates them in place, within bounds.

`ccm.machines.rollout` plans the writes of a pass; `controller` triggers passes and carries out the
plans.
"""
