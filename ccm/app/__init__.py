"""L5: assembles the daemon; the only package that imports all the others.

The wiring lives here, and the settings live in `options`. This package reads each setting and
passes it down as a plain value. Below it, only manifests see flags, those of their own
controller, and no package reads the environment. Behaviour of a controller, a cloud or the API
server does not belong here.
"""
