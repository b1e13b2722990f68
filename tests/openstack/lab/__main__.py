"""Start or stop the lab from the command line."""

import sys

from tests.openstack.lab.services import main

main(sys.argv[1:])
