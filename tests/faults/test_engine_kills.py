"""The real engine on the CPU, killed: the kit once, its server once (benchmarks/faults/kill_engine.py: ten times)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.bench import free_port
from tests.faults.engine_kills import EngineBench


@pytest.mark.engine
@pytest.mark.parametrize("victim", ["kit", "server"])
def test_a_killed_run_of_the_real_engine_goes_on(tmp_path: Path, victim: str) -> None:
    bench = EngineBench(tmp_path, free_port())
    # 8 requests warm up, then 4 a pass: two passes are whole, and the third has begun.
    met = bench.kill_once(random.Random(3), (0.0, 0.0), victim, after=17)
    print(met)
    assert "2 passes" in met
    assert "4 passes more, complete" in met
