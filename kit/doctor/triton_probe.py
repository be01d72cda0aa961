"""A Triton kernel for the doctor's probe. Triton reads a kernel's source, so it must stand in a module."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803 - Triton's custom
    """``out[i] = x[i] + y[i]`` for ``i < n``."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)
