"""``python -m partita`` is the command ``partita``."""

from __future__ import annotations

import sys

from partita_command import main

sys.exit(main())
