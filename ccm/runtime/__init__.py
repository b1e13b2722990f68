"""L3: the parts of every controller; independent of any concrete kind.

`controller` turns watch events into reconciles with bounded concurrency. `backoff` schedules
retries, `writer` sends patches, `lazy` starts informers and controllers on demand. The decisions
are in the controllers.
"""
