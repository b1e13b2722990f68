"""L0: tools that know neither Kubernetes nor clouds.

Each module here could be a library of its own: clocks, back-off arithmetic,
supervised tasks, waits with a deadline, rate limiters, duration text, logging,
metrics, feature gates.
A third-party package enters through exactly one of these modules. Nothing here
may use a word of Kubernetes or of a cloud, and nothing here reads a flag.
"""
