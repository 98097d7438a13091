"""`python -m lockstep`, the same as `lockstep`."""

import sys

from lockstep.cli import main

sys.exit(main())
