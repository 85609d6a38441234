"""`python -m gpuwright`: the same as the console script."""

import sys

from gpuwright.cli import main

sys.exit(main())
