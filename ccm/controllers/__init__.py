"""L4: one package per controller; none imports another.

In each, `plan.py` decides (data in, plan out: no clock, no I/O, no await) and
`controller.py` acts: it reads caches, queries the cloud and executes the plan. `metrics.py`
declares the metrics, and `manifest.py` the names, flags and permissions of the controller, and
its construction. `ccm.app.options.controllers` lists the manifests. Controllers read no flags and
no environment; the manifest passes their settings.
"""
