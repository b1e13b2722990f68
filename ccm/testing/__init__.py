"""Tools for tests, ours and those of provider authors; the daemon never imports them.

What may enter: clocks, fakes and suites that somebody outside this project could use to
test a provider. What must never: anything that production code would want to import.
"""
