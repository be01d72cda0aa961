"""Stand-in for triton: kernels can be defined, and raise when they are launched."""

from __future__ import annotations

from typing import Any

from kit_standin import StandInCalled, fill

__version__ = "3.6.0"


class JITFunction:
    """What ``@triton.jit`` leaves: a named thing that cannot be launched."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = getattr(fn, "__name__", "kernel")
        self.__module__ = getattr(fn, "__module__", __name__)
        self.__doc__ = getattr(fn, "__doc__", None)

    def __getitem__(self, _grid: Any) -> Any:
        """Return a launch that raises."""
        return self

    def __call__(self, *_: Any, **__: Any) -> None:
        """Raise: there is no compiler here."""
        raise StandInCalled(f"triton.jit kernel {self.fn.__module__}.{self.__name__}")


def jit(fn: Any = None, **_: Any) -> Any:
    """Mark a kernel."""
    return JITFunction(fn) if fn is not None else JITFunction


def _keep(*_: Any, **__: Any) -> Any:
    return lambda fn: fn


autotune = heuristics = _keep


class Config:
    """A tuning point; only ever listed."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


def cdiv(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length() if n > 0 else 1


fill(__name__)
