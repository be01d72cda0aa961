"""Which backend is used and why, without an engine; tests/docker has the choice with one."""

from __future__ import annotations

import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kit import reproduce as pipeline
from kit.backends import auto
from kit.cli import cli
from kit.errors import UserError
from kit.records import PlanConfig
from kit.scenarios import ModelPaths, Rig, load_rig


@pytest.fixture
def rig() -> Rig:
    return load_rig("cpu")


@pytest.fixture
def docker_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `docker` command with a Compose plug-in, and nothing else on the path."""
    script = tmp_path / "bin" / "docker"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho 2.30.0\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(script.parent))


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'none.sock'}")


@pytest.fixture
def hung_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """A socket that takes connections and never says a word."""
    path, taken = tmp_path / "hung.sock", []
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()

        def take() -> None:
            while True:
                try:
                    taken.append(door.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        yield taken
        door.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()


def test_a_url_decides_whatever_was_asked_for(rig: Rig) -> None:
    for name in auto.NAMES:
        backend, why = auto.backend_for(name, rig, 1, "http://127.0.0.1:9")
        assert (backend.name, why) == ("attach", "a URL was given")


def test_attach_without_a_url_is_an_error(rig: Rig) -> None:
    with pytest.raises(UserError, match="attach needs a server"):
        auto.backend_for("attach", rig, 1)


@pytest.mark.usefixtures("docker_command", "no_engine")
def test_auto_without_an_engine_is_a_process_and_says_why(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto.importlib.util, "find_spec", lambda _: object())
    backend, why = auto.backend_for("auto", rig, 1)
    assert backend.name == "process"
    assert why.startswith("no container: there is no Docker Engine at unix://")
    assert "\n" not in why


@pytest.mark.usefixtures("no_engine")
def test_auto_without_a_docker_command_or_engine_is_a_process(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setenv("PATH", "")
    backend, why = auto.backend_for("auto", rig, 1)
    assert backend.name == "process"
    assert why.startswith("no container: ")


# The SDK leaves the socket of a request that timed out to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("docker_command")
def test_auto_does_not_wait_for_an_engine_that_hangs(
    rig: Rig, hung_engine: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "PATIENCE_S", 0.2)
    monkeypatch.setattr(auto.importlib.util, "find_spec", lambda _: object())
    backend, why = auto.backend_for("auto", rig, 1)
    assert backend.name == "process"
    assert why.endswith("does not answer")
    assert hung_engine, "it was tried"


@pytest.mark.usefixtures("docker_command", "no_engine")
def test_nothing_usable_is_one_sentence(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(
        UserError, match=r"No backend can be used: there is no Docker Engine.*SGLang"
    ):
        auto.backend_for("auto", rig, 1)
    with pytest.raises(UserError, match="SGLang is not installed"):
        auto.backend_for("process", rig, 1)


@pytest.mark.usefixtures("docker_command", "no_engine")
def test_compose_without_an_engine_is_exit_code_2_before_anything_is_made(
    project: Path, tmp_path: Path
) -> None:
    done = CliRunner().invoke(cli, ["reproduce", "--rig", "cpu", "--backend", "compose"])
    assert isinstance(done.exception, UserError), done.exception
    assert done.exception.exit_code == 2
    assert "There is no Docker Engine at" in done.exception.sentence
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "pairs").exists()


class _Image:
    """A backend whose servers run in an image."""

    name = "compose"
    image_digest = "sha256:abc"
    software = {"python": "3.12.1", "os": "other 1", "packages": {"sglang": "9"}}  # noqa: RUF012


def test_manifest_describes_the_images_software(rig: Rig, tmp_path: Path) -> None:
    def manifest(backend: Any) -> Any:
        plan: PlanConfig = pipeline.plan_config(rig, pipeline.Wanted(scenarios=["baseline"]))
        models = ModelPaths(target=str(tmp_path), draft=str(tmp_path))
        scenario = {"baseline": pipeline.load_scenario("baseline")}
        made: Callable[..., Any] = pipeline._manifest
        command = {"baseline": pipeline.command_for(scenario["baseline"], rig, models, 1)}
        return made(["kit"], rig, scenario, command, plan, backend, "asked for", models)

    inside, host = manifest(_Image()), manifest(auto.ProcessBackend(port=1))
    assert inside.fingerprint["packages"] == {"sglang": "9"}
    assert inside.fingerprint["python"] == "3.12.1"
    assert inside.fingerprint["cpu_model"] == host.fingerprint["cpu_model"]
    assert inside.fingerprint_hash != host.fingerprint_hash
    assert (inside.backend, inside.backend_reason) == ("compose", "asked for")
    assert inside.image_digest == "sha256:abc"
