"""The machine deployment controller: exchanges machines for others, within bounds.

`ccm.machines.rollout` decides all of it; `controller` says when, and carries it out.
"""
