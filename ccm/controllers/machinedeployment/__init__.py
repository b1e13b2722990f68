"""The machine deployment controller: exchanges machines for others, within bounds.

`ccm.machines.rollout` decides all of it; `calls` carries that out, `controller` says when.
"""
