"""No test waits for the disk, but for those of `make test-long`: no test sees a power cut, against which a
run guards some thirty times. Importing this is enough, before anything takes the functions by name."""

from __future__ import annotations

import os


def _at_once(descriptor: object) -> None:
    """Leave it to the system when the file reaches the disk."""


if os.environ.get("HYPOTHESIS_PROFILE") != "long":
    os.fsync = os.fdatasync = _at_once
