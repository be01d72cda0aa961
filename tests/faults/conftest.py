from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.bench import Bench


@pytest.fixture(scope="module")
def shared_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("bench"))
    yield bench
    bench.close()


@pytest.fixture
def bench(shared_bench: Bench) -> Iterator[Bench]:
    """The module's project, without the runs and changes of earlier tests."""
    shared_bench.clear()
    shared_bench.rig()
    for path in (shared_bench.home / "golden").iterdir():
        path.unlink()
    yield shared_bench
    assert shared_bench.left() == []
