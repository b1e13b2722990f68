"""L5: assembles the daemon; the only package that imports all lower layers.

The wiring lives here, and the settings live in `options`. This package reads each setting and
passes it to lower layers as a plain value. In those layers, only the manifest of a controller reads
flags: those of the controller. Behaviour of a controller, a cloud or the API server does not belong
here.
"""
