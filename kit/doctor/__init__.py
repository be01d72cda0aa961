"""The doctor: look at the machine before an image is pulled or a weight loaded, and say what will not work and why.

:func:`kit.doctor.run.examine` runs every check of :data:`kit.doctor.run.CHECKS`. Each gives ok, a warning (numbers
may suffer), a blocker (the run cannot work) or "unavailable" (this host does not tell), with what was seen.
"""

from __future__ import annotations

from kit.doctor.model import Check, Result, Status

__all__ = ["Check", "Result", "Status"]
