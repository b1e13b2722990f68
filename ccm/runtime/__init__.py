"""L3: the parts that all controllers share, independent of the kinds of objects.

`controller` turns watch events into reconciles, and `workers` bounds their concurrency. `backoff`
schedules retries, `writer` sends patches, `deletions` blocks mass deletions, `ownership` claims
objects for owners, `lazy` starts informers and controllers on demand. `object_status` has the data
for `explain`, and `manifest` describes a controller. This package makes no decision of a
controller.
"""
