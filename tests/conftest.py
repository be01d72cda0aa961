"""Shared fixtures: a free port, the stub server's command, a scratch project."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from kit.scenarios import ServerCommand

# No test measures time: a slow machine is not a failure.
hypothesis.settings.register_profile("kit", deadline=None)
hypothesis.settings.load_profile("kit")

ROOT = Path(__file__).resolve().parent.parent

# Looking at the machine takes two seconds a run; tests/doctor turns it on where it is what is tested.
os.environ.setdefault("KIT_NO_DOCTOR", "1")

# A shell starts background jobs with SIGINT ignored, and children inherit that: they would not hear a test's Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keep a running engine out of every test that is not about one: `auto` would serve in containers there.

    A hook, since fixtures of a wider scope may start a kit before any fixture of the test itself.
    """
    if item.get_closest_marker("docker"):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
        return (yield)


@pytest.fixture
def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture
def stub_command(free_port: int) -> Callable[..., ServerCommand]:
    """Return a function that gives the stub's command; keyword ``mode`` breaks one thing."""

    def make(**options: object) -> ServerCommand:
        argv = [str(ROOT / "tests" / "stub_server.py"), "--port", str(free_port)]
        for name, value in options.items():
            argv += [f"--{name.replace('_', '-')}", str(value)]
        return ServerCommand(scenario="baseline", rig="cpu", argv=argv, env={})

    return make


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project's data with run and pair folders of its own."""
    root = tmp_path / "project"
    shutil.copytree(ROOT / "scenarios", root / "scenarios")
    shutil.copytree(ROOT / "golden", root / "golden")
    monkeypatch.setenv("KIT_HOME", str(root))
    monkeypatch.setenv("KIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("KIT_PAIRS", str(tmp_path / "pairs"))
    return root


@pytest.fixture(scope="session")
def python() -> str:
    return sys.executable
