"""The set-up itself, from an empty checkout, with an installer that writes down what it is told."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kit.errors import UserError
from kit.setup_env import bootstrap, build, stamp
from kit.setup_env.build import NEEDED_SPACE, Site, set_up
from kit.setup_env.console import Runner, StepError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
# Plays uv: writes its arguments down, fails where FAIL matches them, makes what is looked at.
FAKE_UV = """#!/bin/sh
echo "$*" >> "{calls}"
case "$*" in --version) exit 0;; esac
ls -l /proc/self/fd | grep -q setup/lock || {{ echo "the lock is not held"; exit 1; }}
if [ -n "$FAIL" ]; then case "$*" in $FAIL) echo "${{WORDS:-no such version}}"; exit 1;; esac; fi
for last; do :; done
case "$*" in
  venv*) mkdir -p "$last/bin"
         printf '#!/bin/sh\\necho "python $*" >> "{calls}"\\ncase "$*" in $PYFAIL) exit 2;; esac\\n' \
           > "$last/bin/python"
         chmod +x "$last/bin/python"; echo > "$last/new";;
  *-e*) touch {root}/.venv.tmp/bin/kit; chmod +x {root}/.venv.tmp/bin/kit;;
esac
"""
NO_CPU_TORCH = "*cpu-torch-py*"


class Checkout:
    """A checkout with a fake uv in its cache."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls = root / "calls"
        shutil.copytree(ROOT / "locks", root / "locks")
        shutil.copy(ROOT / "pyproject.toml", root)
        digest = hashlib.sha256((root / "locks/bootstrap.txt").read_bytes()).hexdigest()[:12]
        uv = root / f".cache/setup/uv-{digest}/bin/uv"
        uv.parent.mkdir(parents=True)
        uv.write_text(FAKE_UV.format(calls=self.calls, root=root))
        uv.chmod(0o755)

    @property
    def installs(self) -> list[str]:
        """The arguments of each call that installed something."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if line.startswith("pip install")]

    def set_up(self, **environ: str) -> None:
        """Set up on a host without a GPU."""
        set_up(self.root, {"PATH": "/usr/bin:/bin", "KIT_LOCK": "cpu", **environ})


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setattr(bootstrap, "pip_config", lambda *_: "global.find-links='/wheels'\n")
    return Checkout(tmp_path)


def notes(checkout: Checkout) -> dict[str, object]:
    text = (checkout.root / ".venv" / stamp.STAMP).read_text()
    found = json.loads(text)["notes"]
    assert isinstance(found, dict)
    return found


def test_first_set_up_installs_torch_the_lock_and_the_kit(checkout: Checkout) -> None:
    checkout.set_up()
    torch, packages, kit = checkout.installs
    which = f"py{sys.version_info[0]}{sys.version_info[1]}"
    assert torch.endswith(
        f"--require-hashes --no-build -r {checkout.root}/locks/cpu-torch-{which}.txt"
    )
    assert packages.endswith(
        f"--require-hashes --no-build -r {checkout.root}/locks/cpu-{which}.txt"
    )
    assert kit.endswith(f"--no-build-isolation -e {checkout.root}")
    assert all("--no-deps" in line for line in checkout.installs)
    assert not (checkout.root / ".venv.tmp").exists()
    assert notes(checkout)["torch"] == "wheel"


def test_the_patches_are_applied_and_verified_after_the_packages(checkout: Checkout) -> None:
    checkout.set_up()
    lines = checkout.calls.read_text().splitlines()
    apply = lines.index("python -m kit patches apply")
    assert lines[apply + 1] == "python -m kit patches verify"
    assert all(lines.index(line) < apply for line in checkout.installs)


@pytest.mark.parametrize("what", ["apply", "verify"])
def test_a_failing_patch_step_leaves_no_environment(checkout: Checkout, what: str) -> None:
    with pytest.raises(UserError, match=rf"patching SGLang \({what}\)"):
        checkout.set_up(PYFAIL=f"*patches {what}")
    assert not (checkout.root / ".venv").exists()


def test_second_set_up_calls_nothing(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout.set_up()
    before = checkout.calls.read_text()
    capsys.readouterr()
    # Not even the questions that come before the first step are asked again.
    monkeypatch.setitem(NEEDED_SPACE, "cpu", 10**18)
    checkout.set_up()
    assert checkout.calls.read_text() == before
    assert capsys.readouterr().out == ""


def test_who_waited_for_another_set_up_finds_its_work_done(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = build.only_one

    @contextlib.contextmanager
    def after_another(path: Path) -> Iterator[int]:
        monkeypatch.setattr(build, "only_one", real)
        checkout.set_up()
        with real(path) as hold:
            yield hold

    monkeypatch.setattr(build, "only_one", after_another)
    checkout.set_up()
    assert len(checkout.installs) == 3


def test_cuda_lock_brings_its_own_torch(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NEEDED_SPACE, "cuda13", 0)
    checkout.set_up(KIT_LOCK="cuda")
    packages, _ = checkout.installs
    assert "locks/cuda13-py" in packages


@pytest.mark.parametrize(
    ("fail", "way"), [("none", "wheel"), (NO_CPU_TORCH, "cuda"), ("*cpu-torch-py*.txt", "backend")]
)
def test_torch_is_taken_from_the_first_way_that_works(
    fail: str, way: str, checkout: Checkout
) -> None:
    checkout.set_up(FAIL=fail)
    assert notes(checkout)["torch"] == way


def test_a_named_way_to_torch_is_the_only_one(checkout: Checkout) -> None:
    with pytest.raises(UserError, match="fetching torch"):
        checkout.set_up(KIT_TORCH="wheel", FAIL=NO_CPU_TORCH)
    assert len(checkout.installs) == 1
    with pytest.raises(UserError, match="no way to get torch"):
        checkout.set_up(KIT_TORCH="rocm")


def test_without_any_torch_the_installers_words_are_shown(checkout: Checkout) -> None:
    with pytest.raises(UserError, match=r"(?s)fetching torch.*index is closed") as caught:
        checkout.set_up(FAIL="*cpu-torch*", WORDS="index is closed")
    assert len(checkout.installs) == 3
    assert ".cache/setup/setup.log" in caught.value.remedy


def test_a_full_disk_ends_it_at_once(checkout: Checkout) -> None:
    with pytest.raises(UserError, match="The disk is full"):
        checkout.set_up(FAIL="*cpu-torch*", WORDS="No space left on device (os error 28)")
    assert len(checkout.installs) == 1


def test_a_disk_too_small_for_the_cuda_build_is_said_with_its_size(checkout: Checkout) -> None:
    full = "No space left on device (os error 28)"
    with pytest.raises(UserError, match="CUDA build of torch") as caught:
        checkout.set_up(KIT_TORCH="cuda", FAIL="*cpu-torch*", WORDS=full)
    assert "5 GB" in caught.value.remedy


def test_too_little_space_is_said_before_anything_is_fetched(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NEEDED_SPACE, "cpu", 10**18)
    with pytest.raises(UserError, match="GB of disk space"):
        checkout.set_up()
    assert checkout.installs == []


def test_a_failed_set_up_leaves_the_old_environment_and_the_next_one_mends(
    checkout: Checkout,
) -> None:
    checkout.set_up()
    (checkout.root / ".venv/old").touch()
    lock = next(
        (checkout.root / "locks").glob(f"cpu-py{sys.version_info[0]}{sys.version_info[1]}*")
    )
    lock.write_text(lock.read_text() + "# changed\n")
    with pytest.raises(UserError, match="installing packages"):
        checkout.set_up(FAIL="*locks/cpu-py*")
    assert (checkout.root / ".venv/old").exists()
    assert not (checkout.root / ".venv.tmp").exists()
    (checkout.root / ".venv.tmp").mkdir()
    (checkout.root / ".venv.tmp/rubbish").touch()
    checkout.set_up()
    assert not (checkout.root / ".venv/old").exists()
    assert not (checkout.root / ".venv/rubbish").exists()
    assert not (checkout.root / ".venv.old").exists()


def test_torch_that_does_not_load_is_no_environment(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Runner.run

    def broken(self: Runner, what: str, command: list[str], *rest: object) -> float:
        if what == "loading torch":
            raise StepError(command, 1, "libcudart.so.13: cannot open shared object file")
        return real(self, what, command, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Runner, "run", broken)
    with pytest.raises(UserError, match=r"(?s)loading torch.*libcudart"):
        checkout.set_up()
    assert not (checkout.root / ".venv").exists()


def test_pips_configuration_reaches_uv(checkout: Checkout) -> None:
    runner = Runner(checkout.root, checkout.root / "log", {"VIRTUAL_ENV": "/other"})
    build.prepare_uv(Site(checkout.root), runner, {})
    assert runner.environ["UV_FIND_LINKS"] == "/wheels"
    assert "VIRTUAL_ENV" not in runner.environ


# Runs a set-up whose installer sleeps, the lock held by both; prints nothing.
SLEEPER = """
import signal
from pathlib import Path
from kit.setup_env import build, cli
from kit.setup_env.console import Runner

def sleeping(root, environ):
    with build.only_one(Path("lock")) as hold:
        command = ["/bin/sh", "-c", "echo $$ > pid; exec sleep 60"]
        Runner(Path("."), Path("log"), {}, (hold,)).run("sleeping", command)

# Tests that run in the background are started with SIGINT ignored, which children inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
build.set_up = sleeping
raise SystemExit(cli.run(["setup"]))
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    while not child(tmp_path):
        assert process.poll() is None
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()
    with contextlib.suppress(ProcessLookupError):
        os.kill(child(tmp_path), signal.SIGKILL)


def child(folder: Path) -> int:
    """Return the process id of the sleeping installer, 0 as long as there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / "pid").read_text())
    return 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_end_ends_the_installer_too(
    number: signal.Signals, sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    sleeper.send_signal(number)
    assert sleeper.wait() == 130
    assert not Path(f"/proc/{child(tmp_path)}").exists()


def test_an_installer_that_outlives_a_killed_set_up_keeps_the_next_one_waiting(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    sleeper.kill()
    sleeper.wait()
    with (tmp_path / "lock").open() as handle:
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(child(tmp_path), signal.SIGKILL)
        fcntl.flock(handle, fcntl.LOCK_EX)


class FakePips:
    """A host where only some ways to pip work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *working: str) -> None:
        self.working = working
        monkeypatch.setattr(bootstrap, "works", lambda command: "own" in working)
        monkeypatch.setattr(bootstrap, "debian_pip_wheel", self.debian)
        monkeypatch.setattr(Runner, "run", self.run)

    def debian(self, folder: Path, runner: object) -> Path | None:
        return Path("/debian/pip.whl") if "debian" in self.working else None

    def run(self, what: str, command: list[str], *rest: object) -> float:
        if "ensurepip" not in self.working:
            raise StepError(command, 1, "No module named ensurepip")
        return 0.0


@pytest.mark.parametrize(
    ("working", "command"),
    [
        (("own", "ensurepip", "debian"), [sys.executable, "-m", "pip"]),
        (("ensurepip", "debian"), ["{cache}/pip/bin/python", "-m", "pip"]),
        (("debian",), [sys.executable, "/debian/pip.whl/pip"]),
    ],
)
def test_pip_is_found_where_there_is_one(
    working: tuple[str, ...], command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakePips(monkeypatch, *working)
    found = bootstrap.find_pip(tmp_path, Runner(tmp_path, tmp_path / "log", {}))
    assert found == [part.format(cache=tmp_path) for part in command]


def test_no_pip_at_all_is_one_sentence_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakePips(monkeypatch)
    with pytest.raises(UserError, match="neither pip nor ensurepip") as caught:
        bootstrap.find_pip(tmp_path, Runner(tmp_path, tmp_path / "log", {}))
    assert "apt-get install python3-venv" in caught.value.remedy
