"""L4: one package per controller; none knows another.

In each, `plan.py` decides (data in, plan out: no clock, no I/O, no await) and
`controller.py` acts: it reads caches, asks the cloud and carries the plan out. `metrics.py`
declares what is counted, and `manifest.py` the names, flags and rights of the controller, and
how it is made of them. `ccm.app.options.names` lists the manifests. Controllers read no
flags and no environment; the manifest hands them their settings.
"""
