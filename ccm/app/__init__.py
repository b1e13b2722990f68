"""L5: the daemon put together, and the one room that knows every other.

The wiring lives here, and in `options` what the daemon may be told. A setting is read here
and handed down as a plain value; of the rooms below only manifests see flags, those of their
controller, and none sees the environment. No behaviour of a controller, a cloud or the API
server belongs here.
"""
