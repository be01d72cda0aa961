"""A client that could not keep up, from the command line to the exit code.

The kit's process is stopped in the middle of a level, as a host without a free core would do to it. The answer that
it waits for is there before it goes on, so that whatever the machine does besides, the lateness is the client's.
"""

from __future__ import annotations

import signal
import threading
import time

from tests.faults.bench import WARM_END, Bench, Kit, until
from tests.load.scripted import Action, Asked, reply, scripted, state

# Hundreds of ticks of the event loop, each of them late.
STOPPED_S = 2.0


def hold(kit: Kit) -> None:
    """Stop the kit's process for a while; the caller lets it go on."""
    kit.send(signal.SIGSTOP)
    time.sleep(STOPPED_S)


def test_a_reproduction_is_invalid(bench: Bench) -> None:
    gate = bench.gate(WARM_END + 1)
    kit = bench.reproduce("--sweeps", "1", stub=gate.stub)
    gate.reached(kit)
    hold(kit)
    gate.open()
    kit.send(signal.SIGCONT)
    assert kit.wait() == 3, kit.out + kit.err
    assert "INVALID" in kit.out
    assert "the load client was the bottleneck in 1 of 1 passes" in " ".join(kit.out.split())
    verdict = bench.verdict()
    assert verdict is not None
    assert (verdict["status"], verdict["exit_code"]) == ("INVALID", 3)
    found = [f for f in verdict["findings"] if f["id"] == "client-bound"]
    assert {(f["severity"], f["level"]) for f in found} >= {("invalid", 1)}
    # Nothing else was wrong with it.
    assert {f["id"] for f in verdict["findings"] if f["severity"] == "invalid"} == {"client-bound"}
    assert any(r.level == 1 and r.client["client_bound"] for r in bench.data().levels)


def test_a_bench_of_any_server_is_invalid(bench: Bench) -> None:
    reached, opened = threading.Event(), threading.Event()

    def script(asked: Asked) -> list[Action]:
        if asked.number == 3:  # two warm the server up
            reached.set()
            opened.wait(60)
        return [reply(state(4, 4))]

    with scripted(script) as server:
        kit = bench.start("bench", "--url", server.url, "--requests", "4", "--tokens", "4")
        assert until(lambda: reached.is_set() or kit.done()), kit.out + kit.err
        assert reached.is_set(), kit.out + kit.err
        hold(kit)
        opened.set()
        kit.send(signal.SIGCONT)
        assert kit.wait() == 3, kit.out + kit.err
    assert "4 of 4 output tokens, 0 failed" in kit.out
    assert "INVALID: the client was the bottleneck: its event loop came" in kit.out
