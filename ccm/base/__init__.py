"""L0, the lowest layer: general tools that depend neither on Kubernetes nor on a cloud.

Each module could be a library of its own: clocks, back-off arithmetic, supervised tasks, waits with
a deadline, rate limiters, durations as text, logging, metrics, feature gates. Each third-party
package except msgspec is imported by only one of these modules. The modules are configured by
arguments; none reads the command line.
"""
