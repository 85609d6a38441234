"""pyinfra's settings for this checkout."""

import sys
from pathlib import Path

from pyinfra import config

config.REQUIRE_PYINFRA_VERSION = ">=3.10,<3.11"

# pyinfra's console script puts the working directory last on sys.path, where any installed package
# called `facts` or `deploys` would win over ours.
_root = str(Path(__file__).resolve().parent)
if sys.path[0] != _root:
    sys.path.insert(0, _root)
