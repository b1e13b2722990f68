"""L3: what every controller is built from; knows no concrete kind.

`loop` turns keys into reconciles with bounded concurrency, `retry` says when a failed one
comes back, `periodic` runs passes. Controllers bring the decisions.
"""
