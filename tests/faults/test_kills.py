"""A run that is killed at any of 200 random instants is readable and goes on; nothing that was measured is lost.

160 times the kit with a server that somebody else runs, 20 times the kit with a server of its own, 20 times that
server. benchmarks/faults/kill200.py does each 200 times.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.bench import Bench
from tests.faults.kills import Tally, many_kills


@pytest.fixture(scope="module")
def tallies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tally]:
    """Two projects at once: each kit waits more than it computes."""

    def attached(bench: Bench) -> dict[str, Tally]:
        return {"attached": many_kills(bench, 120, seed=1, attach=True)}

    def rest(bench: Bench) -> dict[str, Tally]:
        return {
            "own": many_kills(bench, 20, seed=2),
            "server": many_kills(bench, 20, seed=3, victim="server"),
            "attached too": many_kills(bench, 40, seed=4, attach=True),
        }

    def run(folder: Path, job: Callable[[Bench], dict[str, Tally]]) -> dict[str, Tally]:
        bench = Bench(folder)
        try:
            found = job(bench)
            assert bench.left() == []
        finally:
            bench.close()
        return found

    folders = [tmp_path_factory.mktemp("kills") for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, folders, (attached, rest))
    return {**first, **second}


def test_two_hundred_kills_lose_nothing(tallies: dict[str, Tally]) -> None:
    """Each kill asserts what it found (:func:`tests.faults.kills.one_kill`); here: that there were so many."""
    for name, tally in tallies.items():
        print(f"{name}: {tally.text()}")
    assert sum(t.kills for t in tallies.values()) == 200


def test_the_instants_were_spread_over_the_run(tallies: dict[str, Tally]) -> None:
    attached = tallies["attached"]
    assert attached.passes_kept > 10
    assert attached.passes_again > 10
    assert attached.requests_set_aside > 10
    assert tallies["own"].passes_again > 0
    assert tallies["server"].passes_again > 0
