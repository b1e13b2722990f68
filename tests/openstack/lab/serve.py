"""Serve the application of an OpenStack service; runs in the environment of the lab.

usage: serve.py HOST PORT MODULE [ARGUMENT...]
"""

import importlib
import sys

from cheroot import wsgi  # type: ignore[import-not-found]

host, port, module = sys.argv[1:4]
# The services read their arguments when they are imported.
sys.argv = [module, *sys.argv[4:]]
application = importlib.import_module(module).application
server = wsgi.Server((host, int(port)), application, numthreads=8, request_queue_size=128)
try:
    server.start()
finally:
    server.stop()
