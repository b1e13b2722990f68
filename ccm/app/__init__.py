"""L5: the daemon put together, and the one room that knows every other.

Flags, controller names, feature gates and the wiring live here. A setting is read
here and handed down as a plain value; nothing below this room sees a flag or the
environment. No behaviour of a controller, a cloud or the API server belongs here.
"""
