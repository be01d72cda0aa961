"""Random numbers from a counter: the same on every machine, device and library version.

Library generators differ between CPU and CUDA and may change between releases; a pair must not.
Every value here is a 32-bit integer hash of (seed, stream, index), so it can be computed anywhere
in any order.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_GOLDEN = 0x9E3779B1
# "lowbias32" by C. Wellons: two rounds of xor-shift and multiply with low measured bias.
_M1, _M2 = 0x7FEB352D, 0x846CA68B
_CHUNK = 1 << 20


def stream_key(seed: int, name: str) -> int:
    """A 32-bit key for the named stream of numbers under a seed."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def hash32(key: int, count: int) -> NDArray[np.uint32]:
    """``count`` hashed 32-bit values, indices 0, 1, … (numpy)."""
    x = np.arange(count, dtype=np.uint32) * np.uint32(_GOLDEN) + np.uint32(key)
    x ^= x >> np.uint32(16)
    x *= np.uint32(_M1)
    x ^= x >> np.uint32(15)
    x *= np.uint32(_M2)
    x ^= x >> np.uint32(16)
    return x


def hash64(seed: int, name: str, count: int) -> NDArray[np.uint64]:
    """``count`` 64-bit values from two streams; collisions do not happen at vocabulary sizes."""
    high = hash32(stream_key(seed, name + "/high"), count).astype(np.uint64)
    return (high << np.uint64(32)) | hash32(stream_key(seed, name + "/low"), count)


def permutation(seed: int, name: str, count: int) -> NDArray[np.int64]:
    """A random order of 0 … count-1."""
    return np.argsort(hash64(seed, name, count), kind="stable")


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def hash32_torch(key: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """The values of :func:`hash32` for indices ``start`` …, as int32 of the same bits."""
    import torch

    # int32 arithmetic wraps; a right shift copies the sign, so its upper bits are masked off.
    x = torch.arange(start, start + count, dtype=torch.int32, device=device)
    x.mul_(_signed(_GOLDEN)).add_(_signed(key))
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
    x.mul_(_M1)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF))
    x.mul_(_signed(_M2))
    return x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))


def uniform(
    key: int, shape: tuple[int, ...], std: float, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """A tensor of uniform values with mean 0 and the given standard deviation."""
    import torch

    count = int(np.prod(shape))
    out = torch.empty(count, dtype=dtype, device=device)
    # int32 over ±2^31 has standard deviation 2^31/√3; the product is one correctly rounded float32
    # step.
    scale = float(np.float32(std * 3**0.5 / 2**31))
    # On a CPU a piece that stays in the cache is several times faster than the whole tensor at
    # once.
    chunk = _CHUNK >> 4 if device.type == "cpu" else _CHUNK << 6
    for start in range(0, count, chunk):
        part = hash32_torch(key, start, min(chunk, count - start), device)
        out[start : start + part.numel()] = part.to(torch.float32).mul_(scale)
    return out.view(shape)


def signs(key: int, rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """A float32 matrix of random ±1."""
    import torch

    bits = torch.empty(rows * columns, dtype=torch.float32, device=device)
    for start in range(0, rows * columns, _CHUNK):
        part = hash32_torch(key, start, min(_CHUNK, rows * columns - start), device)
        bits[start : start + part.numel()] = (part < 0).to(torch.float32).mul_(-2).add_(1)
    return bits.view(rows, columns)
