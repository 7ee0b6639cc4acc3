"""`python -m conformance`."""

import sys

from conformance.main import main

sys.exit(main())
