"""``pytest golden --run RUN``: check a run folder against its golden file, a test for each finding, level and claim."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit import paths, verdict
from kit.errors import KitError
from kit.golden import golden_for, read_golden
from kit.runfolder import latest_run, read_run
from kit.verdict.model import Verdict


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--run`` and ``--golden``."""
    group = parser.getgroup("golden")
    group.addoption("--run", default=None, help="run folder to check; the latest one by default")
    group.addoption("--golden", default=None, help="golden file; the rig's own by default")


class _State:
    verdict: Verdict | None = None
    problem = ""
    source = ""


def _load(config: pytest.Config) -> _State:
    """Judge the run once a session; a problem becomes one failing test with what to do."""
    state = _State()
    named = config.getoption("--run")
    try:
        folder = Path(named) if named else latest_run(paths.runs_dir())
        if folder is None:
            state.problem = (
                f"There is no run in {paths.runs_dir()}. "
                "Make one with `make reproduce`, or name a run folder with --run."
            )
            return state
        state.source = f"{'run' if named else 'latest run'} {folder}"
        data = read_run(folder)
        given = config.getoption("--golden")
        golden = read_golden(Path(given)) if given else golden_for(str(data.manifest.rig["name"]))
        state.verdict = verdict.judge(data, golden)
    except KitError as error:
        state.problem = str(error)
    return state


_key = pytest.StashKey[_State]()


def pytest_configure(config: pytest.Config) -> None:
    """Judge before collection, so that test ids name scenarios, levels and claims."""
    config.stash[_key] = _load(config)


def pytest_report_header(config: pytest.Config) -> str:
    """Say which run is checked."""
    state = config.stash[_key]
    return f"golden: {state.source or state.problem}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test for each thing that the verdict holds."""
    state = metafunc.config.stash[_key]
    judged = state.verdict
    if "level" in metafunc.fixturenames:
        rows = judged.levels if judged else []
        metafunc.parametrize("level", rows, ids=[f"{v.scenario}-C{v.level}" for v in rows])
    if "claim" in metafunc.fixturenames:
        claims = judged.claims if judged else []
        metafunc.parametrize("claim", claims, ids=[c.id for c in claims])


@pytest.fixture
def state(request: pytest.FixtureRequest) -> _State:
    """What was loaded."""
    return request.config.stash[_key]
