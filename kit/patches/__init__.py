"""The patch series for SGLang 0.5.12.post1: list, apply, revert, verify, by checksum and without importing SGLang."""

from __future__ import annotations

from kit.patches.preflight import run_patches
from kit.patches.series import VERSION, Patch, available
from kit.patches.site import (
    FileReport,
    Outcome,
    PatchState,
    Verification,
    apply,
    find_site,
    live,
    revert,
    verify,
)

__all__ = [
    "VERSION",
    "FileReport",
    "Outcome",
    "Patch",
    "PatchState",
    "Verification",
    "apply",
    "available",
    "find_site",
    "live",
    "revert",
    "run_patches",
    "verify",
]
