"""`python -m tightrope` is the same as `tightrope`."""

from __future__ import annotations

import sys

from tightrope.cli import main

sys.exit(main())
