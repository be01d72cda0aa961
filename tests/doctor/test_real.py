"""The doctor on this very host: a taken port, a zombie, the command line, the start of a run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kit.cli import cli
from kit.doctor.device_probe import probe
from kit.doctor.preflight import before
from kit.doctor.probes import Host, Job
from kit.doctor.run import CHECKS
from kit.errors import UserError
from kit.scenarios import load_rig

BY_ID = {c.id: c for c in CHECKS}
# A parent that does not wait for its child, whose name is that of a server's process.
ZOMBIE = """
import ctypes, os, sys
pid = os.fork()
if pid == 0:
    ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
    os._exit(0)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("name", "status"), [("sglang::sched", "warning"), ("idle", "ok")])
def test_a_zombie_is_named_with_the_parent_to_end(name: str, status: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ZOMBIE, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        code = (
            "from kit.doctor import processes; from kit.doctor.run import CHECKS\n"
            "from kit.doctor.probes import Host, Job\n"
            # Servers of other tests may run meanwhile: all are named here, not the first few.
            "processes.MOST_NAMED = 10**6\n"
            "print(next(c for c in CHECKS if c.id == 'host.leftovers').run(Host(), Job()).model_dump_json())"
        )
        # A process of its own: children of the one that looks are its own affair.
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        found = json.loads(out)
        parent.communicate()
    text = found["seen"] + found["remedy"]
    if status == "warning":
        assert found["status"] == "warning"
        assert f"pid {pid} {name}, a zombie" in text
        assert f"kill {parent.pid}" in text
    else:
        assert f"pid {pid} {name}, a zombie" not in text


def test_a_taken_port_names_who_listens(free_port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        result = BY_ID["network.port"].run(Host(), Job(port=free_port))
    assert result.status == "blocker"
    assert f"pid {os.getpid()}" in result.seen
    assert BY_ID["network.port"].run(Host(), Job(port=free_port)).status == "ok"


def test_a_blocker_stops_a_run_and_says_all(free_port: int, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        with pytest.raises(UserError, match=r"in use.*network\.port") as caught:
            before(load_rig("cpu"), "process", free_port, print, tmp_path)
    assert caught.value.exit_code == 2
    assert "--no-doctor" in caught.value.remedy


def test_the_command_line_on_this_host(free_port: int) -> None:
    done = CliRunner().invoke(cli, ["doctor", "--rig", "cpu", "--port", str(free_port), "--json"])
    report: dict[str, Any] = json.loads(done.output)
    assert [r["id"] for r in report["results"]] == [c.id for c in CHECKS]
    found = {r["id"]: r for r in report["results"]}
    assert found["kernels.torch"]["status"] == "ok"
    blocked = [r for r in report["results"] if r["status"] == "blocker"]
    assert done.exit_code == (2 if blocked else 0)
    for result in report["results"]:
        assert result["status"] in ("ok", "unavailable") or result["remedy"]


def test_a_kernel_that_is_missing_or_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "missing" in probe("triton", "cuda")
    assert probe("torch", "cpu")["right"] is True


@pytest.mark.docker
def test_a_container_with_little_shared_memory() -> None:
    from kit.backends import engine
    from tests.docker.conftest import base_image

    client = engine.connect()
    out = client.containers.run(
        base_image(), ["df", "-k", "--output=size", "/dev/shm"], remove=True, shm_size="16m"
    )
    client.close()
    size = int(out.split()[-1]) * 1024
    machine = Host(usage=lambda _: (size, 0, size))
    result = BY_ID["host.shm"].run(machine, Job(load_rig("cpu")))
    assert result.status == "warning"
    assert "16 MiB" in result.seen
