"""Making ``.venv``: uv, the environment, torch, the lock, the kit itself, the patches, the stamp, in this order.

The environment grows in ``.venv.tmp`` and takes its place at the very end, so an interrupted set-up
leaves the old one usable and the next one starts clean; what was fetched lies in uv's cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kit.errors import UserError
from kit.setup_env import bootstrap, choose, pipconfig, stamp
from kit.setup_env.console import Runner, StepError, folder_size, say
from kit.setup_env.lockfiles import tag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# How the CPU export gets torch, in the order of preference; KIT_TORCH names one to use it alone.
TORCH_WAYS = ("wheel", "backend", "cuda")
TORCH_WORDS = {
    "wheel": "CPU build, from this host's package sources",
    "backend": "CPU build, from the index that uv knows for it",
    "cuda": "CUDA build with the libraries it loads (no CPU build within reach)",
}
# uv's index for CPU builds may be out of reach; find out soon instead of retrying for minutes.
BACKEND_LIMITS = {
    "UV_HTTP_CONNECT_TIMEOUT": "5",
    "UV_HTTP_TIMEOUT": "20",
    "UV_HTTP_RETRIES": "0",
}
# Free space to ask for before starting, in bytes: the measured sizes of docs/setup.md (the cache is
# hard-linked where it lies on the same disk) and some room.
NEEDED_SPACE = {"cpu": 3 * 10**9, "cuda13": 12 * 10**9}
# What may point uv at another environment than the one that is being made.
MISLEADING = ("VIRTUAL_ENV", "UV_SYSTEM_PYTHON", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON")


@dataclass(frozen=True)
class Site:
    """Where things lie for one checkout."""

    root: Path

    @property
    def venv(self) -> Path:
        """The environment that the make targets use."""
        return self.root / ".venv"

    @property
    def cache(self) -> Path:
        """The set-up's own folder: uv, a pip if one had to be made, the log."""
        return self.root / ".cache/setup"

    def lock(self, kind: str) -> Path:
        """The lock of a kind (``cpu``, ``cuda13``, ``cpu-torch`` …) for this Python."""
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        return self.root / f"locks/{kind}-{tag(python)}.txt"

    def locks(self, kind: str) -> list[Path]:
        """Every file that a set-up of this kind may install from."""
        kinds = [kind] if kind != "cpu" else ["cpu", "cpu-torch", "cpu-torch-cuda"]
        return [self.lock(each) for each in kinds]


@dataclass(frozen=True)
class Uv:
    """The pinned uv and what pip's configuration says for it.

    Attributes:
        path: The executable.
        no_index: pip was told to use ``find-links`` only.
    """

    path: Path
    no_index: bool


def interpreter() -> str:
    """Return the interpreter outside any virtual environment, which a new one must rest on."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def torch_ways(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the ways to try.

    Raises:
        UserError: ``KIT_TORCH`` names none.
    """
    asked = environ.get("KIT_TORCH", "")
    if not asked:
        return TORCH_WAYS
    if asked not in TORCH_WAYS:
        remedy = f"Use one of {', '.join(TORCH_WAYS)}."
        raise UserError(f"KIT_TORCH={asked} is no way to get torch.", remedy)
    return (asked,)


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[int]:
    """Hold a lock on ``path`` so that two set-ups of one checkout do not meet.

    Yields:
        The descriptor that holds it.
    """
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up of this checkout is running; waiting for it.")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle.fileno()


def check_space(root: Path, kind: str) -> None:
    """Refuse to start where the packages cannot fit.

    Raises:
        UserError: too little space.
    """
    need, free = NEEDED_SPACE[kind], shutil.disk_usage(root).free
    if free < need:
        raise UserError(
            f"Set-up from the {kind} lock needs {need / 1e9:.0f} GB of disk space, "
            f"and {root} has {free / 1e9:.1f} GB.",
            "Free some space, or clone to another disk.",
        )


def prepare_uv(
    site: Site, runner: Runner, environ: Mapping[str, str], *, resolving: bool = False
) -> Uv:
    """Get uv and hand it the user's pip configuration through ``runner``'s environment."""
    path, pip = bootstrap.ensure_uv(site.root, site.cache, runner)
    options = pipconfig.parse_config_list(
        bootstrap.pip_config(pip, site.cache, runner, environ),
    )
    runner.environ.update(pipconfig.uv_environment(options, environ, resolving=resolving))
    for name in MISLEADING:
        runner.environ.pop(name, None)
    return Uv(path, pipconfig.no_index(options))


class Build:
    """One set-up from nothing.

    Args:
        site: The checkout.
        choice: The lock to install.
        environ: The user's environment.
        hold: The descriptor of :func:`only_one`.
    """

    def __init__(
        self, site: Site, choice: choose.Choice, environ: Mapping[str, str], hold: int
    ) -> None:
        self.site = site
        self.choice = choice
        self.environ = environ
        self.tmp = site.root / ".venv.tmp"
        self.runner = Runner(site.root, site.cache / "setup.log", environ, (hold,))
        self.install: list[str] = []
        self.step = 0
        self.steps = 6 if choice.kind == "cpu" else 5

    def run(self, want: dict[str, object]) -> None:
        """Make the environment.

        Args:
            want: The stamp to write at the end.

        Raises:
            UserError: something that the user can mend.
        """
        shutil.rmtree(self.tmp, ignore_errors=True)
        try:
            self.make(want)
        finally:
            # Gone already where all went well; else gigabytes that nobody would look for.
            shutil.rmtree(self.tmp, ignore_errors=True)

    def make(self, want: dict[str, object]) -> None:
        """Take the steps of :meth:`run`."""
        started = time.monotonic()
        self.tell("the installer (uv, from locks/bootstrap.txt)")
        uv = prepare_uv(self.site, self.runner, self.environ)
        venv = [str(uv.path), "venv", "--quiet", "--no-project", "--relocatable"]
        python = str(self.tmp / "bin/python")
        self.attempt("making .venv", [*venv, "--python", interpreter(), str(self.tmp)])
        # Compiled once here: where PYTHONDONTWRITEBYTECODE is set (container images, CI), each
        # process of each server would compile SGLang and torch anew and start half as fast.
        self.install = [str(uv.path), "pip", "install", "--python", python]
        self.install += ["--no-deps", "--compile-bytecode", *(["--no-index"] * uv.no_index)]
        notes: dict[str, object] = {"lock": self.choice.kind}
        if self.choice.kind == "cpu":
            self.tell("torch for the CPU")
            notes["torch"] = self.torch()
        lock = self.site.lock(self.choice.kind)
        self.tell(f"packages of {lock.relative_to(self.site.root)}")
        self.attempt("installing packages", self.from_lock(lock))
        self.tell("the kit itself, editable")
        kit = [*self.install, "--no-build-isolation", "-e", str(self.site.root)]
        self.attempt("installing the kit", kit)
        self.tell("the patches to SGLang, all switched off")
        for what in ("apply", "verify"):
            self.attempt(f"patching SGLang ({what})", [python, "-m", "kit", "patches", what])
        self.tell("a look whether torch loads")
        loads = "import torch, kit; print(torch.__version__, torch.ones(2).sum().item())"
        self.attempt("loading torch", [python, "-c", loads])
        notes["seconds"] = round(time.monotonic() - started, 1)
        stamp.write(self.tmp, want, notes)
        self.swap()
        size = folder_size(self.site.venv) / 1e9
        say(f"Set-up done in {time.monotonic() - started:.0f} s, .venv holds {size:.2f} GB.")

    def tell(self, text: str) -> None:
        """Announce the next step."""
        self.step += 1
        say(f"  [{self.step}/{self.steps}] {text}")

    def from_lock(self, lock: Path) -> list[str]:
        """Return the command that installs a lock: every hash checked, nothing built."""
        return [*self.install, "--require-hashes", "--no-build", "-r", str(lock)]

    def torch(self) -> str:
        """Install torch in the first way that works and return the way."""
        last: StepError | None = None
        for way in torch_ways(self.environ):
            command = self.from_lock(
                self.site.lock("cpu-torch-cuda" if way == "cuda" else "cpu-torch")
            )
            backend = way == "backend"
            try:
                self.runner.run(
                    "fetching torch",
                    [*command, *(["--torch-backend", "cpu"] * backend)],
                    BACKEND_LIMITS if backend else None,
                )
            except StepError as failed:
                last = failed
                if failed.disk_full and way == "cuda":
                    raise UserError(
                        "The disk is full (fetching the CUDA build of torch).",
                        "Free 5 GB, or give this host a CPU build of torch (docs/setup.md).",
                    ) from None
                if failed.disk_full:
                    break
                continue
            say(f"        {TORCH_WORDS[way]}")
            return way
        assert last is not None
        raise self.as_user_error("fetching torch", last)

    def attempt(self, what: str, command: list[str]) -> None:
        """Run a step, turning its failure into a sentence."""
        try:
            self.runner.run(what, command)
        except StepError as failed:
            raise self.as_user_error(what, failed) from None

    def as_user_error(self, what: str, failed: StepError) -> UserError:
        """Say what an installer's failure means."""
        if failed.disk_full:
            return UserError(f"The disk is full ({what}).", "Free some space, then run it again.")
        log = self.runner.log.relative_to(self.site.root)
        return UserError(
            f"Set-up failed while {what}:\n{failed.tail}\n",
            f"The whole log is {log}. Mend the cause and run it again; it starts clean.",
        )

    def swap(self) -> None:
        """Put the finished environment in the old one's place."""
        old = self.site.root / ".venv.old"
        shutil.rmtree(old, ignore_errors=True)
        if self.site.venv.is_symlink():
            self.site.venv.unlink()
        elif self.site.venv.exists():
            self.site.venv.rename(old)
        self.tmp.rename(self.site.venv)
        shutil.rmtree(old, ignore_errors=True)


def set_up(root: Path, environ: Mapping[str, str]) -> None:
    """Bring ``.venv`` up to date, doing nothing where it is.

    Raises:
        UserError: the host does not fit, or a step failed.
    """
    site = Site(root)
    choice = choose.choose(environ, choose.probe_gpu())
    python = f"{platform.python_version()} {interpreter()}"
    want = stamp.expected(root, site.locks(choice.kind), python)
    if stamp.is_fresh(site.venv, want):
        return
    choose.check_host(platform.system(), platform.machine(), platform.libc_ver())
    check_space(root, choice.kind)
    site.cache.mkdir(parents=True, exist_ok=True)
    with only_one(site.cache / "lock") as hold:
        if stamp.is_fresh(site.venv, want):
            return
        (site.cache / "setup.log").write_text("", encoding="utf-8")
        version = platform.python_version()
        say(f"Set-up: {choice.kind} lock ({choice.reason}), Python {version}, into .venv")
        Build(site, choice, environ, hold).run(want)
