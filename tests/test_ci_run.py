""".ci/run around stand-ins: its engine is stopped whatever happens, and the last line sums up the tests."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = "===== 3 passed in 0.01s ====="


class Checkout:
    """A folder with .ci/run and stand-ins that write what they were called with into `calls`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / ".ci").mkdir()
        shutil.copy(ROOT / ".ci" / "run", root / ".ci" / "run")
        for folder in ("bin", "scripts", "tmp", ".venv/bin"):
            (root / folder).mkdir(parents=True)
        self.script("bin/docker", f"test -e {root}/engine")
        self.script("bin/id", "echo 0")
        self.script("bin/make", "")
        self.script("bin/apt-get", "")
        # A file that exists tells .ci/run that the engine's data were there before.
        self.script(
            "bin/rm",
            f'case "$*" in *{root}/tmp/*) exec /bin/rm "$@" ;; *) echo "rm $*" >>{root}/calls ;; esac',
        )
        self.script(
            "scripts/docker-on-debian.sh",
            f'case "$1" in stop) /bin/rm {root}/engine ;; *) touch {root}/engine ;; esac',
        )
        self.script("scripts/ci-chromium.sh", "")
        self.script(".venv/bin/python", f"echo '{SUMMARY}'")

    def script(self, name: str, body: str) -> None:
        path = self.root / name
        log = f'echo "{name} $*" >>{self.root}/calls'
        path.write_text(f"#!/bin/bash\n{log}\n{body}\n")
        path.chmod(0o755)

    def start(self, **env: str) -> subprocess.Popen[str]:
        path = f"{self.root}/bin:/usr/bin:/bin"
        return subprocess.Popen(
            ["bash", ".ci/run"],
            cwd=self.root,
            env={
                "PATH": path,
                "HOME": os.environ.get("HOME", "/"),
                "TMPDIR": str(self.root / "tmp"),
                "CI": "true",
                **env,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Who ignores a signal hands that on, and a shell cannot trap it then: under nohup this one would be deaf.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )

    def run(self, **env: str) -> tuple[int, list[str]]:
        with self.start(**env) as child:
            output, _ = child.communicate(timeout=60)
        return child.returncode, output.splitlines()

    @property
    def calls(self) -> list[str]:
        return (self.root / "calls").read_text().splitlines()

    @property
    def marks(self) -> set[str]:
        """What each of the two halves of the tests is narrowed to."""
        calls = [c for c in self.calls if c.startswith(".venv/bin/python")]
        assert len(calls) == 2
        return {c.rpartition(" -m ")[2] for c in calls}


LIGHT = "not engine and not docker"
WITH_DOCKER = {"engine or docker", LIGHT}
# Both halves are the same stand-in.
TWICE = re.compile(r"===== 6 passed in \d+ s =====")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_engine_is_started_for_the_tests_and_stopped_after(checkout: Checkout) -> None:
    code, lines = checkout.run()
    assert code == 0
    assert TWICE.fullmatch(lines[-1])
    names = [c.split()[0] for c in checkout.calls]
    assert names.index("bin/make") < names.index("scripts/docker-on-debian.sh")
    assert checkout.marks == WITH_DOCKER
    assert checkout.calls[-1].startswith(("scripts/docker-on-debian.sh stop", "rm -rf"))
    assert "scripts/docker-on-debian.sh stop" in checkout.calls
    assert not (checkout.root / "engine").exists()


def test_tests_that_fail_give_their_code_and_the_engine_is_stopped(checkout: Checkout) -> None:
    checkout.script(".venv/bin/python", "echo '== 1 failed =='; exit 3")
    code, lines = checkout.run()
    assert code == 3
    assert lines[-1].startswith("===== 2 failed in")
    assert "scripts/docker-on-debian.sh stop" in checkout.calls


@pytest.mark.parametrize(
    ("heavy", "light", "expected"),
    [(0, 0, 0), (1, 0, 1), (0, 1, 1), (2, 1, 2), (5, 0, 0), (0, 5, 0), (5, 1, 1), (5, 5, 5)],
)
def test_a_half_that_fails_fails_it_and_one_without_tests_does_not(
    checkout: Checkout, heavy: int, light: int, expected: int
) -> None:
    checkout.script(
        ".venv/bin/python",
        f"""case "$*" in
          *"{LIGHT}") echo "== 7 passed, 1 warning, 90 deselected in 2.50s =="; exit {light} ;;
          *) echo "== 1 failed, 90 passed, 2 warnings, 7 deselected, 1 error in 70.12s (0:01:10) =="; exit {heavy} ;;
        esac""",
    )
    code, lines = checkout.run()
    assert code == expected
    # Both halves are shown whole, and the last line counts both; what one leaves out the other one runs.
    assert sum("90 deselected" in line or "7 deselected" in line for line in lines) == 2
    assert re.fullmatch(
        r"===== 1 failed, 97 passed, 3 warnings, 1 errors in \d+ s =====", lines[-1]
    )
    assert not list((checkout.root / "tmp").iterdir())


def test_lint_that_fails_ends_it_before_an_engine_is_started(checkout: Checkout) -> None:
    checkout.script("bin/make", "exit 2")
    code, _ = checkout.run()
    assert code == 2
    assert [c.split()[0] for c in checkout.calls] == ["bin/make"]


def test_an_engine_that_answers_is_used_and_left_alone(checkout: Checkout) -> None:
    (checkout.root / "engine").touch()
    code, _ = checkout.run()
    assert code == 0
    assert checkout.marks == WITH_DOCKER
    assert not any("docker-on-debian" in c or c.startswith("rm ") for c in checkout.calls)
    assert (checkout.root / "engine").exists()


@pytest.mark.parametrize(
    ("script", "env", "why"),
    [
        (("bin/id", "echo 1000"), {}, "only root could start one"),
        ((".venv/bin/unused", ""), {"CI": ""}, "CI is not set"),
        (("scripts/docker-on-debian.sh", "echo no mirror; exit 2"), {}, "could not be started"),
    ],
)
def test_without_an_engine_it_says_why_and_runs_the_rest(
    checkout: Checkout, script: tuple[str, str], env: dict[str, str], why: str
) -> None:
    checkout.script(*script)
    code, lines = checkout.run(**env)
    assert code == 0
    assert any(why in line for line in lines), lines
    assert TWICE.fullmatch(lines[-1])
    assert checkout.marks == {"engine and not docker", LIGHT}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_both_halves_and_the_engine(checkout: Checkout, number: int) -> None:
    root = checkout.root
    checkout.script(
        ".venv/bin/python",
        f"trap 'touch {root}/ended.$$; exit' TERM; echo half a line of $$; touch {root}/ready.$$; sleep 60 & wait",
    )
    with checkout.start() as child:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and len(list(root.glob("ready.*"))) < 2:
            time.sleep(0.02)
        child.send_signal(number)
        output, _ = child.communicate(timeout=30)
    assert child.returncode == 143
    assert len(list(root.glob("ended.*"))) == 2
    assert not (root / "engine").exists()
    # The half that is shown at the end is shown at this end too.
    assert output.count("half a line") == 2
    assert not list((root / "tmp").iterdir())
