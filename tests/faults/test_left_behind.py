"""Whatever ends a kit, no process, port or temporary file stays; the kit's own reaper sees to a killed one."""

from __future__ import annotations

import os
import signal

import pytest

from kit.backends import leftovers
from tests.faults.bench import Bench, Kit, until
from tests.faults.matrix import IN_WARM_UP, MID_LEVEL

# The requests that are answered before; the next ones are held.
MOMENTS = {"at the start": 0, "in warm-up": IN_WARM_UP, "in a sweep": MID_LEVEL}


def at(bench: Bench, moment: str, stub: str = "") -> Kit:
    gate = bench.gate(MOMENTS[moment])
    kit = bench.reproduce(stub=f"{gate.stub} {stub}")
    if moment == "at the start":
        kit.says("starting the server")
    else:
        gate.reached(kit)
    return kit


def test_success_leaves_nothing(bench: Bench) -> None:
    assert bench.reproduce().wait() == 5  # no golden file
    assert bench.data().manifest.status == "complete"
    assert bench.left() == []


def test_failure_leaves_nothing(bench: Bench) -> None:
    assert bench.reproduce(stub="--mode die-after --after 18").wait() == 3
    assert bench.left() == []


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_nothing(bench: Bench, moment: str, number: int, code: int) -> None:
    kit = at(bench, moment)
    kit.send(number)
    assert kit.wait() == code
    assert "Interrupted" in kit.err
    assert "Traceback" not in kit.out + kit.err
    assert bench.data().manifest.status == "interrupted"
    assert bench.left() == []


def test_ctrl_c_again_and_again_leaves_nothing(bench: Bench) -> None:
    kit = at(bench, "in warm-up", "--mode ignore-sigint")
    for _ in range(4):
        kit.send(signal.SIGINT)
        until(kit.done, 0.15)
        if kit.done():
            break
    assert kit.wait() == 130
    assert "Traceback" not in kit.out + kit.err
    assert bench.left() == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_kit_leaves_nothing(bench: Bench, moment: str) -> None:
    kit = at(bench, moment, "--mode leave-child")
    until(bench.servers)
    kit.send(signal.SIGKILL)
    assert kit.wait() == -signal.SIGKILL
    assert bench.left() == []
    assert bench.data().manifest.status == "running"
    assert not bench.data().being_written


def test_what_a_server_leaves_in_temporary_and_shared_memory_goes(bench: Bench) -> None:
    kit = at(bench, "in warm-up", "--mode litter")
    (server,) = bench.servers()
    memory = leftovers.shared_memory([server])
    assert len(memory) == 1
    assert any(p.name.startswith("litter") for p in bench.temp.rglob("*"))
    kit.send(signal.SIGKILL)
    kit.wait()
    assert bench.left() == []
    assert not any(os.path.exists(name) for name in memory)  # noqa: PTH110


def test_shared_memory_that_another_process_uses_stays(bench: Bench) -> None:
    kit = at(bench, "in warm-up", "--mode litter")
    (server,) = bench.servers()
    (name,) = leftovers.shared_memory([server])
    with open(name, "r+b") as file:  # noqa: PTH123
        import mmap

        with mmap.mmap(file.fileno(), 0):
            kit.send(signal.SIGTERM)
            kit.wait()
            assert bench.left() == []
            assert os.path.exists(name)  # noqa: PTH110
    os.unlink(name)  # noqa: PTH108
