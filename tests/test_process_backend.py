from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kit.backends.process import MARK, ProcessBackend, check_port_free, tail
from kit.errors import EngineError, UserError
from kit.scenarios import ServerCommand

Make = Callable[..., ServerCommand]


def marked_left(mark: str) -> list[int]:
    found = []
    for p in psutil.process_iter():
        try:
            if p.environ().get(MARK) == mark and p.status() != psutil.STATUS_ZOMBIE:
                found.append(p.pid)
        except psutil.Error:
            continue
    return found


def test_serves_and_leaves_nothing(stub_command: Make, free_port: int, tmp_path: Path) -> None:
    backend = ProcessBackend(port=free_port)
    with backend.serve(stub_command(), tmp_path / "log", 20) as server:
        assert server.alive()
        mark = server.mark
        assert marked_left(mark)
    assert not server.alive()
    assert marked_left(mark) == []
    check_port_free("127.0.0.1", free_port)


def test_ready_means_decoded_not_healthy(
    stub_command: Make, free_port: int, tmp_path: Path
) -> None:
    backend = ProcessBackend(port=free_port)
    with (
        pytest.raises(EngineError, match="did not decode a token within 2 s"),
        backend.serve(stub_command(mode="healthy-but-no-decode"), tmp_path / "log", 2),
    ):
        pass


def test_death_at_start_shows_the_log(stub_command: Make, free_port: int, tmp_path: Path) -> None:
    backend = ProcessBackend(port=free_port)
    with (
        pytest.raises(EngineError, match="exit code 1") as caught,
        backend.serve(stub_command(mode="exit-at-start"), tmp_path / "log", 20),
    ):
        pass
    assert "stub failure at start" in caught.value.log_tail


def test_known_log_line_is_explained(stub_command: Make, free_port: int, tmp_path: Path) -> None:
    backend = ProcessBackend(port=free_port)
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    with (
        pytest.raises(EngineError) as caught,
        backend.serve(stub_command(mode="exit-at-start", log_line=line), tmp_path / "log", 20),
    ):
        pass
    assert "memory" in caught.value.sentence.lower()
    assert caught.value.remedy


def test_port_taken_is_said_before_anything_starts(
    stub_command: Make, free_port: int, tmp_path: Path
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", free_port))
        holder.listen()
        with (
            pytest.raises(UserError, match=f"Port {free_port}"),
            ProcessBackend(port=free_port).serve(stub_command(), tmp_path / "log", 5),
        ):
            pass
    assert not (tmp_path / "log").exists()


def test_stubborn_server_is_killed(
    stub_command: Make, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.backends.process.INTERRUPT_PATIENCE_S", 0.3)
    monkeypatch.setattr("kit.backends.process.TERMINATE_PATIENCE_S", 0.3)
    backend = ProcessBackend(port=free_port)
    with backend.serve(stub_command(mode="ignore-sigint"), tmp_path / "log", 20) as server:
        mark = server.mark
    assert marked_left(mark) == []


def test_grandchild_in_its_own_session_is_found_and_ended(
    stub_command: Make, free_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kit.backends.process.INTERRUPT_PATIENCE_S", 0.5)
    monkeypatch.setattr("kit.backends.process.TERMINATE_PATIENCE_S", 0.3)
    backend = ProcessBackend(port=free_port)
    with backend.serve(stub_command(mode="leave-child"), tmp_path / "log", 20) as server:
        mark = server.mark
        assert len(marked_left(mark)) == 2
    assert marked_left(mark) == []


def test_server_killed_from_outside_is_named(
    stub_command: Make, free_port: int, tmp_path: Path
) -> None:
    backend = ProcessBackend(port=free_port)
    with backend.serve(stub_command(), tmp_path / "log", 20) as server:
        os.kill(server.child.pid, signal.SIGKILL)
        server.child.wait(10)
        assert not server.alive()
        assert "SIGKILL" in server.why_dead().sentence


def test_error_in_the_body_still_stops_the_server(
    stub_command: Make, free_port: int, tmp_path: Path
) -> None:
    backend = ProcessBackend(port=free_port)
    with (
        pytest.raises(RuntimeError, match="boom"),
        backend.serve(stub_command(), tmp_path / "log", 20) as server,
    ):
        raise RuntimeError("boom")
    assert marked_left(server.mark) == []


@pytest.mark.parametrize("moment", ["stub_server.py", "kit.backends.reaper"])
def test_interrupt_at_the_birth_of_a_process_leaves_nothing(
    moment: str,
    stub_command: Make,
    free_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, before = subprocess.Popen, signal.getsignal(signal.SIGINT)
    born: list[subprocess.Popen[bytes]] = []

    def interrupted(*args: object, **options: object) -> subprocess.Popen[bytes]:
        child: subprocess.Popen[bytes] = real(*args, **options)  # type: ignore[call-overload]
        if moment in str(args[0]):
            born.append(child)
            os.kill(os.getpid(), signal.SIGINT)
        return child

    monkeypatch.setattr("kit.backends.process.subprocess.Popen", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        ProcessBackend(port=free_port).serve(stub_command(), tmp_path / "log", 20),
    ):
        pass
    assert born[0].poll() is not None
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_while_waiting_leaves_nothing(free_port: int, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from kit.backends.process import ProcessBackend;"
        "from kit.scenarios import ServerCommand\n"
        f"argv=['{Path(__file__).parent / 'stub_server.py'}','--port','{free_port}','--mode','healthy-but-no-decode']\n"
        f"b=ProcessBackend(port={free_port})\n"
        "try:\n"
        f"    with b.serve(ServerCommand(scenario='s',rig='r',argv=argv,env={{}}), Path('{tmp_path}/log'), 60,"
        " lambda s: print('waiting', flush=True)):\n"
        "        pass\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    before = {p.pid for p in psutil.Process(child.pid).children(recursive=True)}
    assert before
    threading.Timer(0.1, child.send_signal, (signal.SIGINT,)).start()
    assert child.wait(30) == 130
    child.stdout.close()
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(p) for p in before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(psutil.pid_exists(p) for p in before)


def test_tail_of_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "none") == ""


def test_tail_reads_the_end_only(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("\n".join(f"line {i}" for i in range(50_000)))
    lines = tail(log, 3).splitlines()
    assert lines == ["line 49997", "line 49998", "line 49999"]
