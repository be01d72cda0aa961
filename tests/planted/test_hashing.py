from __future__ import annotations

import numpy as np
import torch

from kit.planted import hashing

CPU = torch.device("cpu")
KEY = 1517781063
VALUES = [1854037388, 4009169015, 3660485504, 407082249]


def test_known_values() -> None:
    """They must never change: every pair and prompt comes from them."""
    assert hashing.stream_key(0, "embedding") == KEY
    assert hashing.hash32(KEY, 4).tolist() == VALUES


def test_numpy_and_torch_agree_bit_for_bit() -> None:
    for key in (0, 1, 2**31, 2**32 - 1):
        whole = hashing.hash32(key, 70_000)
        part = hashing.hash32_torch(key, 1234, 60_000, CPU).numpy().view(np.uint32)
        assert (part == whole[1234:61_234]).all()


def test_uniform_values_have_the_asked_deviation_and_do_not_depend_on_the_piece_size() -> None:
    values = hashing.uniform(3, (700, 301), 0.02, torch.float32, CPU)
    assert abs(float(values.mean())) < 1e-4
    assert abs(float(values.std()) - 0.02) < 1e-4
    again = hashing.hash32(3, 700 * 301).view(np.int32).astype(np.float32)
    scale = np.float32(0.02 * 3**0.5 / 2**31)
    assert (values.numpy().ravel() == again * scale).all()


def test_signs_are_balanced_and_rows_overlap_no_more_than_chance() -> None:
    rows = hashing.signs(9, 300, 512, CPU)
    assert set(rows.flatten().tolist()) == {-1.0, 1.0}
    overlap = (rows @ rows.T).fill_diagonal_(0) / 512**0.5
    assert abs(float(overlap.std()) - 1.0) < 0.02
    assert float(overlap.abs().max()) < 5.5


def test_permutations_hold_every_number_once_and_differ_by_name_and_seed() -> None:
    orders = [
        hashing.permutation(seed, name, 1000) for seed, name in ((0, "a"), (0, "b"), (1, "a"))
    ]
    for order in orders:
        assert sorted(order.tolist()) == list(range(1000))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert (orders[i] == orders[j]).sum() < 10
