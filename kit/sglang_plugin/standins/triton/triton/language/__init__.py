"""Stand-in for triton.language: types and decorators at definition time."""

from __future__ import annotations

from typing import Any

from kit_standin import fill


class constexpr:  # noqa: N801 - triton's name
    """Annotation of a compile-time argument; a constant of a module is wrapped in it."""

    def __init__(self, value: Any = None) -> None:
        self.value = value


fill(__name__)
