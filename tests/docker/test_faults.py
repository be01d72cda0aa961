"""What can go wrong with a container, on a real engine with a stub in the server's place."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.backends import engine
from kit.backends.auto import compose_fits
from kit.backends.compose import ComposeBackend
from kit.errors import EngineError, UserError
from kit.image import Built
from kit.scenarios import ServerCommand, load_rig
from tests.docker.conftest import ROOT, STUB, everything

Make = Callable[..., ServerCommand]
# ruff: noqa: PT012 - the blocks are the lives of servers
pytestmark = pytest.mark.usefixtures("cpu_image")


@pytest.fixture
def backend(cpu_image: Built, stub_override: Path, free_port: int) -> Any:
    made = ComposeBackend(port=free_port, image=cpu_image.name, overrides=[stub_override])
    yield made
    made.close()


def until(what: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(0.1)
    return what()


def test_serves_and_leaves_nothing(
    leaves_nothing: None, backend: ComposeBackend, stub_command: Make, tmp_path: Path, client: Any
) -> None:
    log = tmp_path / "baseline.log"
    with backend.serve(stub_command(), log, 60) as server:
        assert server.alive()
        details = server.details()
        (container,) = client.containers.list(filters={"label": f"kit.launch={server.project}"})
        host = container.attrs["HostConfig"]
        assert host["CapDrop"] == ["ALL"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert not host["Privileged"]
        assert container.attrs["Config"]["User"] == "kit"
        (binding,) = container.attrs["NetworkSettings"]["Ports"][f"{backend.port}/tcp"]
        assert binding["HostIp"] == "127.0.0.1"
        assert until(lambda: (tmp_path / "baseline.stats.jsonl").read_text().count("\n") >= 2)
    assert not server.alive()
    assert "stub listens" in log.read_text()
    assert details["image_id"] == backend.image_digest
    resolved = (tmp_path / details["compose_file"]).read_text()
    assert f'published: "{backend.port}"' in resolved
    sample = json.loads((tmp_path / "baseline.stats.jsonl").read_text().splitlines()[-1])
    assert sample["memory_bytes"] > 1_000_000
    assert sample["cpu_s"] > 0


def test_anonymous_volumes_go_and_what_others_made_stays(
    backend: ComposeBackend, stub_command: Make, tmp_path: Path, client: Any, cpu_image: Built
) -> None:
    extra = tmp_path / "anonymous.yaml"
    extra.write_text("services:\n  baseline:\n    volumes: ['/anonymous']\n")
    backend.overrides.append(extra)
    network = client.networks.create(
        "kit-bystander", labels={engine.PROJECT_LABEL: "kit-bystander"}
    )
    bystander = client.containers.run(
        cpu_image.name,
        ["sh", "-c", "sleep 600"],
        detach=True,
        labels={engine.PROJECT_LABEL: "kit-bystander"},
    )
    try:
        before = everything(client)
        with backend.serve(stub_command(), tmp_path / "baseline.log", 60):
            made = everything(client)["volumes"] - before["volumes"]
            assert len(made) == 1
        assert everything(client) == before
        bystander.reload()
        assert bystander.status == "running"
    finally:
        bystander.remove(force=True, v=True)
        network.remove()


def test_ready_means_decoded(
    leaves_nothing: None, backend: ComposeBackend, stub_command: Make, tmp_path: Path
) -> None:
    with (
        pytest.raises(EngineError, match="did not decode a token within 3 s"),
        backend.serve(stub_command("no-decode"), tmp_path / "baseline.log", 3),
    ):
        pass


def test_server_that_ends_at_start_shows_its_log(
    leaves_nothing: None, backend: ComposeBackend, tmp_path: Path
) -> None:
    argv = ["-c", "import sys; print('stub failure at start'); sys.exit(3)"]
    command = ServerCommand(
        scenario="baseline", rig="cpu", argv=argv, env={"SGLANG_USE_CPU_ENGINE": "1"}
    )
    with (
        pytest.raises(EngineError, match="exit code 3") as caught,
        backend.serve(command, tmp_path / "baseline.log", 60),
    ):
        pass
    assert "stub failure at start" in caught.value.log_tail


def test_container_killed_from_outside_is_named(
    leaves_nothing: None, backend: ComposeBackend, stub_command: Make, tmp_path: Path, client: Any
) -> None:
    with (
        pytest.raises(EngineError, match=r"killed from outside \(SIGKILL, exit code 137\)"),
        backend.serve(stub_command(), tmp_path / "baseline.log", 60) as server,
    ):
        server._container.kill()
        assert until(lambda: not server.alive())
        raise server.why_dead()


def test_memory_limit_is_named_even_if_the_caller_does_not_look(
    leaves_nothing: None, backend: ComposeBackend, stub_command: Make, tmp_path: Path
) -> None:
    backend.memory = "200m"
    with (
        pytest.raises(
            EngineError, match=r"ran out of memory.*limit of 0\.2 GiB.*OOMKilled"
        ) as caught,
        backend.serve(stub_command(), tmp_path / "baseline.log", 60) as server,
    ):
        assert until(lambda: server.watch._limit_bytes > 0)
        code, _ = server._container.exec_run(["python", "-c", "b'x' * (1 << 30)"])
        assert code == 137
        assert until(lambda: not server.alive())
    assert "limit" in caught.value.remedy


def test_lost_device_is_noticed(
    leaves_nothing: None,
    cpu_image: Built,
    stub_override: Path,
    stub_command: Make,
    tmp_path: Path,
    free_port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kit.backends.watch.PROBE_S", 1)
    backend = ComposeBackend(
        port=free_port,
        image=cpu_image.name,
        overrides=[stub_override],
        probe_devices=["/dev/null", "/dev/full"],
    )
    with (
        pytest.raises(EngineError, match="lost its GPU during the run: /dev/full"),
        backend.serve(stub_command(), tmp_path / "baseline.log", 60) as server,
    ):
        time.sleep(5)
        assert server.alive()
        assert server._container.exec_run(["rm", "/dev/full"], user="0").exit_code == 0
        assert until(lambda: not server.alive())
    backend.close()


def test_port_taken_is_said_before_anything_is_made(
    leaves_nothing: None, backend: ComposeBackend, stub_command: Make, tmp_path: Path
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", backend.port))
        holder.listen()
        with (
            pytest.raises(UserError, match=f"Port {backend.port}"),
            backend.serve(stub_command(), tmp_path / "baseline.log", 60),
        ):
            pass
    assert list(tmp_path.glob("*.override.yaml")) == []


def test_port_taken_meanwhile_is_one_sentence(
    leaves_nothing: None,
    backend: ComposeBackend,
    stub_command: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kit.backends.compose.check_port_free", lambda *_: None)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", backend.port))
        holder.listen()
        with (
            pytest.raises(UserError, match="The port is in use"),
            backend.serve(stub_command(), tmp_path / "baseline.log", 60),
        ):
            pass


def test_missing_image_says_how_to_build_it(
    leaves_nothing: None, stub_command: Make, tmp_path: Path, free_port: int
) -> None:
    backend = ComposeBackend(port=free_port, image="kit-test:none")
    with (
        pytest.raises(UserError, match="kit-test:none is not on this engine") as caught,
        backend.serve(stub_command(), tmp_path / "baseline.log", 60),
    ):
        pass
    assert "kit image build cpu" in caught.value.remedy
    assert compose_fits(load_rig("cpu"), backend) == (
        False,
        "The image kit-test:none is not on this engine",
    )
    backend.close()


def test_image_of_other_locks_is_refused(
    backend: ComposeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits, why = compose_fits(load_rig("cpu"), backend)
    assert fits, why
    monkeypatch.setattr("kit.backends.compose.lock_sha256", lambda *_: "another")
    with pytest.raises(UserError, match="built from other locks"):
        backend.prepare(cpu=True)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this host has a GPU")
def test_no_nvidia_runtime_is_one_sentence(
    leaves_nothing: None, cpu_image: Built, free_port: int, tmp_path: Path
) -> None:
    backend = ComposeBackend(port=free_port, image=cpu_image.name, gpu="toolkit")
    backend_command = ServerCommand(scenario="baseline", rig="cuda", argv=["-c", "1"], env={})
    plain = tmp_path / "limits.yaml"
    plain.write_text("services:\n  baseline:\n    ulimits: !reset null\n")
    backend.overrides.append(plain)
    backend._check_current = lambda *_: None  # type: ignore[method-assign]
    with (
        pytest.raises(UserError, match="no NVIDIA runtime"),
        backend.serve(backend_command, tmp_path / "baseline.log", 60),
    ):
        pass
    backend.close()


def _script(
    backend: ComposeBackend, log: Path, body: str, words: tuple[str, ...] = ()
) -> list[str]:
    """A program that serves the stub; it prints `up` when the container runs, then does ``body``."""
    argv = ["/opt/kit/venv/bin/python", STUB, str(backend.port), *words]
    files = [str(p) for p in backend.overrides]
    code = f"""
import sys, time
from pathlib import Path
from kit.backends.compose import ComposeBackend
from kit.scenarios import ServerCommand
command = ServerCommand(scenario="baseline", rig="cpu", argv={argv!r}, env={{"SGLANG_USE_CPU_ENGINE": "1"}})
backend = ComposeBackend(port={backend.port}, image={backend.image!r}, overrides={files!r})
try:
    with backend.serve(command, Path({str(log)!r}), 60, lambda s: print("up", flush=True)):
        print("up", flush=True)
        {body}
except KeyboardInterrupt:
    sys.exit(130)
"""
    return [sys.executable, "-c", code]


@pytest.mark.parametrize("times", [1, 2])
def test_interrupt_leaves_nothing(
    leaves_nothing: None, backend: ComposeBackend, tmp_path: Path, client: Any, times: int
) -> None:
    """Ctrl-C while it waits for a server that never decodes; then another one during the removal."""
    backend.prepare(cpu=True)
    script = _script(backend, tmp_path / "baseline.log", "time.sleep(600)", ("no-decode",))
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        child.send_signal(signal.SIGINT)
        if times == 2:
            time.sleep(0.4)
            child.send_signal(signal.SIGINT)
        child.stdout.close()
        assert child.wait(60) == 130


def test_crash_of_the_caller_leaves_nothing(
    leaves_nothing: None, backend: ComposeBackend, stub_command: Make, tmp_path: Path
) -> None:
    with (
        pytest.raises(RuntimeError, match="boom"),
        backend.serve(stub_command(), tmp_path / "baseline.log", 60),
    ):
        raise RuntimeError("boom")


def test_kill_of_the_kit_leaves_nothing(
    backend: ComposeBackend, tmp_path: Path, client: Any
) -> None:
    before = everything(client)
    backend.prepare(cpu=True)
    script = _script(backend, tmp_path / "baseline.log", "time.sleep(600)")
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        assert everything(client) != before
        os.kill(child.pid, signal.SIGKILL)
        child.stdout.close()
    assert until(lambda: everything(client) == before)


# The SDK leaves the sockets of failed connections to the garbage collector, which the test therefore calls itself.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.skipif(os.getuid() != 0, reason="starting a second engine needs root")
@pytest.mark.skipif(shutil.which("dockerd") is None, reason="the engine runs on another host")
def test_engine_that_stops_during_a_run(
    cpu_image: Built, stub_override: Path, stub_command: Make, tmp_path: Path, free_port: int
) -> None:
    """On an engine of its own, so that nobody else's containers are stopped."""
    # A short path: the engine's sockets lie in it, and their names may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="kit-engine-"))
    links = {p.name for p in Path("/sys/class/net").iterdir()}
    host = subprocess.run(
        [str(ROOT / "scripts" / "docker-on-debian.sh"), "second", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    pid = int((folder / "pid").read_text())
    try:
        # Base system and Python of the image, without the engine: a fraction of its size.
        folders = "bin sbin lib lib64 usr etc opt/kit/src/kit"
        flow = (
            f"docker run --rm --user 0 --network none {cpu_image.name} "
            f"tar -c -C / --exclude=usr/share --exclude=usr/lib/x86_64-linux-gnu/perl* {folders} "
            f"| docker -H {host} import - kit-test:small"
        )
        subprocess.run(["bash", "-o", "pipefail", "-c", flow], check=True)
        isolated = tmp_path / "net.yaml"
        isolated.write_text(
            "services:\n  baseline:\n    network_mode: host\n    ports: !reset null\n"
        )
        backend = ComposeBackend(
            port=free_port, image="kit-test:small", overrides=[stub_override, isolated], host=host
        )
        with (
            pytest.raises(EngineError, match="Docker Engine stopped answering") as caught,
            backend.serve(
                stub_command(python="/usr/bin/python3"), tmp_path / "baseline.log", 60
            ) as server,
        ):
            os.kill(pid, signal.SIGTERM)
            assert until(lambda: not server.alive(), 60)
            raise server.why_dead()
        assert f"docker compose -p {server.project} down" in caught.value.remedy
        backend.close()
        del caught
        gc.collect()
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if until(lambda: not Path(f"/proc/{pid}").exists(), 20):
                break
            os.kill(pid, number)
        for bridge in {p.name for p in Path("/sys/class/net").iterdir()} - links:
            subprocess.run(["ip", "link", "delete", bridge], check=True)
        for line in Path("/proc/mounts").read_text().splitlines():
            if str(folder) in line:
                subprocess.run(["umount", "--lazy", line.split()[1]], check=True)
        shutil.rmtree(folder, ignore_errors=True)
