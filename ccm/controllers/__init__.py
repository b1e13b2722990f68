"""L4: the controllers, one package or module each; no controller imports another.

In a package, `plan.py` decides without a clock, I/O or await. `controller.py` acts: it reads
caches, queries the cloud and executes the plan. `metrics.py` declares the metrics. `manifest.py`
declares the controller's names, flags and permissions, and constructs it.
`ccm.app.options.controllers` lists the manifests. Controllers read no flags and no environment; the
manifest passes their settings.
"""
