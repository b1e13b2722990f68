"""L4: one package per controller; none knows another.

In each, `plan.py` decides (data in, plan out: no clock, no I/O, no await) and
`controller.py` acts: it reads caches, asks the cloud and carries the plan out.
Controllers read no flags and no environment; `ccm.app` hands them their settings.
"""
