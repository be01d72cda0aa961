"""Reproducibility kit for SGLang EAGLE-3 serving results."""

from __future__ import annotations

__version__ = "0.1.0"
