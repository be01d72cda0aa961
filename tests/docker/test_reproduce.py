"""`kit reproduce` through containers: the same run folder as with processes, all three scenarios, every token exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit import reproduce as pipeline
from kit import verdict as judging
from kit.backends.compose import ComposeBackend
from kit.image import Built
from kit.measure import Observer
from kit.records import FailureRecord, LaunchRecord, LevelRecord
from kit.runfolder import read_run
from kit.scenarios import Rig, load_rig
from kit.schedule import Step
from tests.docker.conftest import everything

LEVELS = [1, 4]


class Quiet(Observer):
    """Hears everything; kills the server's container at a pass if told so."""

    def __init__(self) -> None:
        self.kill_at: Step | None = None
        self.client: Any = None
        self.killed = False

    def opened(self, folder: Path) -> None: ...
    def waiting(self, scenario: str, waited_s: float) -> None: ...
    def launched(self, record: LaunchRecord) -> None: ...
    def passed(self, record: LevelRecord) -> None: ...
    def failed(self, record: FailureRecord) -> None: ...

    def starting(self, step: Step, left_s: float) -> None:
        if self.kill_at and (step.kind, step.level) == (self.kill_at.kind, self.kill_at.level):
            self.kill_at = None
            import threading

            threading.Timer(0.3, self._kill).start()

    def _kill(self) -> None:
        for container in self.client.containers.list(filters={"label": "kit.launch"}):
            container.kill()
            self.killed = True


@pytest.fixture
def rig() -> Rig:
    """The CPU rig with less to do."""
    rig = load_rig("cpu")
    load = rig.load.model_copy(update={"min_requests": 8, "requests_per_slot": 2})
    repetition = rig.repetition.model_copy(update={"max_warm_passes": 1})
    return rig.model_copy(update={"load": load, "repetition": repetition})


@pytest.fixture
def backend(cpu_image: Built, free_port: int) -> Any:
    made = ComposeBackend(port=free_port, image=cpu_image.name)
    yield made
    made.close()


def run(
    rig: Rig,
    backend: ComposeBackend,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    **wanted: Any,
) -> tuple[Path, Quiet]:
    monkeypatch.setenv("KIT_PAIRS", str(tmp_path / "pairs"))
    observer = wanted.pop("observer", Quiet())
    folder = pipeline.run(
        rig,
        pipeline.Wanted(levels=LEVELS, launches=1, sweeps=1, max_launches=1, **wanted),
        backend,
        observer,
        command=["kit", "reproduce", "--backend", "compose"],
        models=pipeline.ensure_pair(rig),
        port=backend.port,
        out=tmp_path / "runs",
    )
    return folder, observer


def test_three_scenarios_exact_and_proven(
    rig: Rig, backend: ComposeBackend, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(client)
    folder, _ = run(rig, backend, tmp_path, monkeypatch)
    assert everything(client) == before

    data = read_run(folder)
    assert data.manifest.status == "complete"
    assert data.manifest.backend == "compose"
    assert data.failures == []
    assert [launch.scenario for launch in data.launches] == list(pipeline.CORE)
    for launch in data.launches:
        assert launch.proof.problems == []
        assert launch.container is not None
        assert launch.container["image_id"] == backend.image_digest
        log = folder / launch.log
        assert "kit cpu plug-in live" in log.read_text()
        assert (log.parent / launch.container["compose_file"]).is_file()
    assert data.requests
    assert all(r.checked and r.mismatch_at is None and r.error is None for r in data.requests)
    speculative = [r for r in data.requests if r.scenario != "baseline"]
    assert all(r.verify_steps == r.planned_verify_steps for r in speculative)
    verdict = judging.judge(data, None)
    assert [f for f in verdict.findings if f.severity == "invalid"] == []


def test_container_killed_during_a_level_is_a_failure_with_its_cause(
    rig: Rig, backend: ComposeBackend, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(client)
    observer = Quiet()
    observer.client = client
    observer.kill_at = Step("sweep", "baseline", 0, LEVELS[-1], 0)
    folder, _ = run(rig, backend, tmp_path, monkeypatch, scenarios=("baseline",), observer=observer)
    assert observer.killed
    assert everything(client) == before
    data = read_run(folder)
    assert data.manifest.status == "failed"
    (failure,) = data.failures
    assert failure.level == LEVELS[-1]
    assert "killed from outside" in failure.sentence
    assert data.measured("baseline", 1), "what was measured before is kept"
    assert judging.judge(data, None).status == "INVALID"
