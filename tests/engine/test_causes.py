"""Each factor perturbed alone in real runs on the CPU engine; the verdict must name the one that was.

Steps are paced (slow/sitecustomize.py), golden's too: what else runs on the machine then does not show in them, and a
factor moves only where a test moves it.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import reproduce as pipeline
from kit import verdict
from kit.backends.process import ProcessBackend, ProcessServer
from kit.golden import Golden
from kit.measure import Observer
from kit.planted import PairSpec, make_pair
from kit.recording import record
from kit.records import RunData
from kit.runfolder import read_run
from kit.scenarios import ModelPaths, Rig, ServerCommand, load_rig
from kit.verdict.model import Cause, Verdict

SCENARIO, LEVEL = "spec-v2", 8
HERE = Path(__file__).parent
# Well above what a step of this batch computes for, on a machine with other work too.
PACE_S = 0.1


class Silent(Observer):
    """An observer that says nothing."""

    def opened(self, folder: Path) -> None: ...
    def starting(self, step: Any, left_s: float) -> None: ...
    def waiting(self, scenario: str, waited_s: float) -> None: ...
    def launched(self, record: Any) -> None: ...
    def passed(self, record: Any) -> None: ...
    def failed(self, record: Any) -> None: ...
    def note(self, text: str) -> None: ...


class Changed(ProcessBackend):
    """Serve with further flags and environment."""

    def __init__(self, port: int, argv: list[str], env: dict[str, str]) -> None:
        super().__init__(port=port)
        self.argv, self.env = argv, env

    def serve(
        self,
        command: ServerCommand,
        log: Path,
        timeout_s: float,
        waiting: Callable[[float], None] = lambda _: None,
    ) -> contextlib._GeneratorContextManager[ProcessServer, None, None]:
        # The last of two equal flags counts.
        changed = {"argv": [*command.argv, *self.argv], "env": {**command.env, **self.env}}
        return super().serve(command.model_copy(update=changed), log, timeout_s, waiting)


def short_rig() -> Rig:
    rig = load_rig("cpu")
    load = rig.load.model_copy(
        update={"levels": [LEVEL], "output_tokens": 32, "min_requests": 16, "requests_per_slot": 2}
    )
    repetition = rig.repetition.model_copy(update={"max_warm_passes": 1})
    return rig.model_copy(update={"load": load, "repetition": repetition})


Measure = Callable[..., RunData]


@pytest.fixture(scope="module")
def measured(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Return a function that measures the scenario on the CPU rig, with something changed."""
    out = tmp_path_factory.mktemp("causes")
    pace = {"KIT_TEST_PACE_S": str(PACE_S)}

    def run(
        launches: int,
        models: Path = pair,
        argv: Any = (),
        observer: Observer | None = None,
        **env: str,
    ) -> RunData:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = int(s.getsockname()[1])
        wanted = pipeline.Wanted(scenarios=[SCENARIO], launches=launches, sweeps=2)
        folder = pipeline.run(
            short_rig(),
            wanted,
            Changed(port, list(argv), {**pace, **env}),
            observer or Silent(),
            command=["test"],
            models=ModelPaths(
                target=str(models / "target"), draft=str(models / "draft"), plan_dir=str(models)
            ),
            port=port,
            out=out,
        )
        return read_run(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE / "slow"))
        yield run


@pytest.fixture(scope="module")
def golden(measured: Measure) -> Golden:
    """Golden numbers of the same server with nothing changed."""
    run = measured(3)
    # A busy test machine may hold the client up and void the run; the noise that it brings stays in.
    rows = [r.model_copy(update={"client": {}}) for r in run.levels]
    return record(run.model_copy(update={"levels": rows}), "by this test", decides="levels")


def cause_of(result: Verdict) -> Cause:
    """Return the one cause that the verdict names; the factors must multiply to what was measured."""
    (level,) = result.levels
    assert level.status == "SLOWER", (level.status, level.ratio)
    (cause,) = result.causes
    assert cause.witness == "server"
    # The overlap scheduler's step after the end is the only part that is not in them.
    assert "factors-do-not-multiply" not in {f.id for f in result.findings}
    print(f"\n{result.status}: {level.ratio} {cause.text}")
    return cause


def invalid(result: Verdict) -> dict[str, str]:
    return {f.id: f.seen for f in result.findings if f.severity == "invalid"}


def test_a_draft_with_another_hit_rate(measured: Measure, golden: Golden, tmp_path: Path) -> None:
    spec = pipeline.pair_spec(load_rig("cpu"))
    assert isinstance(spec, PairSpec)
    worse = make_pair(spec.model_copy(update={"p": 0.1}), tmp_path / "pair")
    result = verdict.judge(measured(1, models=worse), golden)
    assert set(invalid(result)) <= {"client-bound"}, (
        "a busy machine may hold the client up, no more"
    )
    cause = cause_of(result)
    assert (cause.main, cause.origin) == ("accept length", "draft"), cause.text


def test_slower_steps(measured: Measure, golden: Golden) -> None:
    result = verdict.judge(measured(1, KIT_TEST_SLOW_S=str(3 * PACE_S)), golden)
    assert set(invalid(result)) <= {"client-bound"}, (
        "a busy machine may hold the client up, no more"
    )
    cause = cause_of(result)
    assert (cause.main, cause.origin) == ("step time", "steps"), cause.text


def test_capped_running_requests(measured: Measure, golden: Golden) -> None:
    """The client always has eight in flight; that they wait is seen in the server's log only."""
    result = verdict.judge(measured(1, argv=["--max-running-requests", "2"]), golden)
    assert result.status == "INVALID"
    found = invalid(result)
    assert "wrong-setting" in found
    assert "are capped: the server decoded at most 2 at once" in found["concurrency-capped"]
    cause = cause_of(result)
    assert (cause.main, cause.origin) == ("effective concurrency", "cap"), cause.text


class BusyClient(Silent):
    """While a level is measured, another thread of the client holds the interpreter for HOLD_S at a time.

    It sleeps meanwhile (PyDLL calls keep the interpreter): the server loses nothing but its client.
    """

    HOLD_S = 1.5

    def __init__(self) -> None:
        self._hog: threading.Thread | None = None
        self._stop = threading.Event()

    def starting(self, step: Any, left_s: float) -> None:
        if step.kind != "start" and self._hog is None:
            self._stop.clear()
            self._hog = threading.Thread(target=self._hold)
            self._hog.start()

    def passed(self, record: Any) -> None:
        self.stop()

    def _hold(self) -> None:
        sleep = ctypes.PyDLL(None).usleep
        while not self._stop.is_set():
            sleep(int(self.HOLD_S * 1e6))

    def stop(self) -> None:
        self._stop.set()
        if self._hog is not None:
            self._hog.join()
            self._hog = None


def test_a_slow_client(measured: Measure, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the client's clock eight are in flight and steps are slow; the server is idle meanwhile."""
    # Telemetry reads hundreds of files a second, and waits for the interpreter at each: with it the client is held
    # for longer than the server keeps an idle connection.
    monkeypatch.setattr("kit.reproduce.sampling", lambda *_, **__: contextlib.nullcontext())
    client = BusyClient()
    try:
        run = measured(1, observer=client)
    finally:
        client.stop()
    result = verdict.judge(run, golden)
    assert result.status == "INVALID"
    assert "the load client was the bottleneck" in invalid(result)["client-bound"]
    cause = cause_of(result)
    assert (cause.main, cause.origin) == ("effective concurrency", "client"), cause.text
