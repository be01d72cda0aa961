"""The pipeline behind ``kit reproduce``: resolve → pair → measure → judge. It prints nothing.

Each step takes what the one before made; the command line, compose and tests call the same functions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import kit
from kit import fingerprint, paths
from kit.backends.base import Backend
from kit.errors import UserError
from kit.golden import Golden
from kit.measure import Measurement, Observer, measure
from kit.patches import run_patches
from kit.planted import PairSpec, Plan, expected_accept_length, make_pair
from kit.prompts import PromptSource, tokenize_chat
from kit.records import Manifest, PlanConfig, RunData, RunStatus
from kit.resume import Resumed, check_plan, check_same, digest_of_models
from kit.runfolder import RunFolder, read_run
from kit.scenarios import (
    ModelPaths,
    PlantedPairConfig,
    Rig,
    Scenario,
    ServerCommand,
    load_scenario,
    model_paths,
    server_command,
)
from kit.schedule import Clock
from kit.sglang_plugin import cpu_environment, cpu_server_args
from kit.telemetry.sampler import sampling

CORE = ("baseline", "spec-v1", "spec-v2")
DEFAULT_PORT = 30000


@dataclass(frozen=True)
class Wanted:
    """What the user asked for; None means the rig's own."""

    scenarios: Sequence[str] = CORE
    levels: Sequence[int] | None = None
    protocol: Literal["published", "steady"] | None = None
    launches: int | None = None
    sweeps: int | None = None
    max_launches: int | None = None
    output_tokens: int | None = None
    stream: bool = False


def pair_spec(rig: Rig) -> PairSpec | None:
    """Return the spec of the rig's planted pair, None for real weights."""
    if not isinstance(rig.pair, PlantedPairConfig):
        return None
    return PairSpec(**rig.pair.model_dump(exclude={"kind"}))


def expected_accept_lengths(rig: Rig, scenarios: dict[str, Scenario]) -> dict[str, float]:
    """Return the theory's accept length of each speculative scenario; empty for real weights."""
    spec = pair_spec(rig)
    if spec is None:
        return {}
    return {
        name: expected_accept_length(s.topk, s.num_steps, s.num_draft_tokens, spec.p, spec.q)
        for name, scenario in scenarios.items()
        if (s := scenario.speculative)
    }


def planted_dir(rig: Rig) -> Path:
    """Return where the rig's planted pair lies."""
    return paths.pairs_dir() / rig.name


def plan_config(rig: Rig, wanted: Wanted) -> PlanConfig:
    """Resolve what to measure.

    Raises:
        UserError: a level is above the rig's limit of running requests, or a count is not positive.
    """
    levels = sorted(set(wanted.levels or rig.load.levels))
    if levels[0] < 1 or levels[-1] > rig.max_running_requests:
        raise UserError(
            f"Levels must lie between 1 and the rig's max_running_requests ({rig.max_running_requests}).",
            "Choose other --levels, or raise max_running_requests in the rig file.",
        )
    protocol = wanted.protocol or rig.load.protocol
    launches = wanted.launches or rig.repetition.launches
    given = wanted.max_launches or (
        launches if wanted.launches else max(launches, rig.repetition.max_launches)
    )
    return PlanConfig(
        scenarios=list(dict.fromkeys(wanted.scenarios)),
        levels=levels,
        protocol=protocol,
        launches=launches,
        sweeps=wanted.sweeps or rig.repetition.sweeps,
        max_launches=max(given, launches),
        output_tokens=wanted.output_tokens or rig.load.output_tokens,
        warm_output_tokens=rig.repetition.warm_output_tokens,
        input_tokens=rig.load.input_tokens,
        requests={level: rig.load.requests_at(level, protocol) for level in levels},
        stream=wanted.stream,
    )


def resumed_wanted(plan: PlanConfig) -> Wanted:
    """Return what asks for ``plan`` again."""
    return Wanted(
        scenarios=plan.scenarios,
        levels=plan.levels,
        protocol=plan.protocol,
        launches=plan.launches,
        sweeps=plan.sweeps,
        max_launches=plan.max_launches,
        output_tokens=plan.output_tokens,
        stream=plan.stream,
    )


def caveat_of(rig: Rig) -> str:
    """Return what every report of this rig must say."""
    trusted = "The server was allowed to run code from the model's folder (trust_remote_code)."
    return f"{rig.caveat} {trusted}".strip() if rig.server.trust_remote_code else rig.caveat


def ensure_pair(rig: Rig, progress: Callable[[str], None] | None = None) -> ModelPaths:
    """Make the rig's planted pair if it has one and it is not there yet; return where the models lie.

    Raises:
        UserError: no space, or a real model's path is missing.
    """
    spec = pair_spec(rig)
    folder = planted_dir(rig)
    if spec is not None:
        device = "cpu" if rig.match.gpu is None else "cuda"
        make_pair(spec, folder, device=device, progress=progress)
    return model_paths(rig, folder)


def command_for(
    scenario: Scenario, rig: Rig, models: ModelPaths, port: int, host: str = "127.0.0.1"
) -> ServerCommand:
    """Return the server's command, with what the CPU plug-in needs where the rig uses it."""
    command = server_command(scenario, rig, models, host=host, port=port)
    if not rig.server.cpu_plugin:
        return command
    return command.model_copy(
        update={
            "argv": [*command.argv, *cpu_server_args(command.argv)],
            "env": {**cpu_environment(), **command.env},
        }
    )


def git_commit(root: Path) -> str | None:
    """Return the checkout's commit with ``+dirty`` if files differ, None outside a checkout."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+dirty" if dirty else commit


def require_engine() -> None:
    """Refuse to go on without SGLang.

    Raises:
        UserError: it is not installed beside the kit.
    """
    if importlib.util.find_spec("sglang") is None:
        raise UserError(
            "SGLang is not installed in this Python.",
            "Run `make setup` and use .venv/bin/kit, or choose --backend attach.",
        )


def _manifest(
    command: Sequence[str],
    rig: Rig,
    scenarios: dict[str, Scenario],
    commands: dict[str, ServerCommand],
    plan: PlanConfig,
    backend: Backend,
    backend_reason: str,
    models: ModelPaths,
) -> Manifest:
    # Where servers run in an image, its packages are what counts, not those beside the kit.
    software: dict[str, Any] = getattr(backend, "software", {})
    print_ = fingerprint.collect().model_copy(update=software)
    spec = pair_spec(rig)
    pair: dict[str, Any] = (
        {"kind": "planted", **spec.model_dump(mode="json")} if spec else {"kind": "paths"}
    )
    if models.plan_dir is None:
        pair |= {"target": Path(models.target).name, "draft": Path(models.draft).name}
    return Manifest(
        run_id="",
        kit_version=kit.__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=list(command),
        status="running",
        rig=rig.model_dump(mode="json", by_alias=True),
        scenarios={
            name: {
                **scenarios[name].model_dump(mode="json", by_alias=True),
                "argv": commands[name].argv,
                "env": commands[name].env,
            }
            for name in scenarios
        },
        plan=plan,
        backend=backend.name,
        backend_reason=backend_reason,
        pair=pair,
        expected_accept_length=expected_accept_lengths(rig, scenarios),
        fingerprint=print_.model_dump(mode="json"),
        fingerprint_hash=print_.hash,
        patches=run_patches(
            backend.name, {n: [*s.patches, *rig.server.patches] for n, s in scenarios.items()}
        ),
        git_commit=git_commit(paths.project_root()),
        lock=os.environ.get("KIT_LOCK_NAME"),
        image_digest=getattr(backend, "image_digest", None),
        pair_digest=digest_of_models(models),
        caveat=caveat_of(rig),
    )


def clock_for(plan: PlanConfig, golden: Golden | None, earlier: RunData | None = None) -> Clock:
    """Return a clock that knows golden's throughput and what the steps of an earlier run took."""
    known = {
        s: {c: r.value for c, r in levels.items()}
        for s, levels in (golden.throughput if golden else {}).items()
    }
    clock = Clock(plan, known)
    if earlier is not None:
        clock.learn(earlier)
    return clock


def run(
    rig: Rig,
    wanted: Wanted,
    backend: Backend,
    observer: Observer,
    *,
    command: Sequence[str],
    models: ModelPaths,
    port: int = DEFAULT_PORT,
    out: Path | None = None,
    backend_reason: str = "",
    golden: Golden | None = None,
    more: Callable[[Path, int], Sequence[str]] | None = None,
    ends_at: float | None = None,
    earlier: RunData | None = None,
    resumed: Resumed | None = None,
    doctor: Sequence[dict[str, Any]] = (),
) -> Path:
    """Measure and return the run folder. Its status says whether everything was measured.

    Args:
        rig: What to measure on.
        wanted: What to measure.
        backend: How servers are run.
        observer: Hears what happens.
        command: The command line, for the record.
        models: Where the models lie.
        port: Where servers listen.
        out: Parent of the run folder.
        backend_reason: Why this backend, for the record.
        golden: For a first estimate of the time.
        more: Called with the run folder and the number of launches; says why another one is wanted.
        ends_at: Reading of ``time.monotonic`` after which no step starts.
        earlier: A run of the same rig, for a better estimate of the time.
        resumed: A run to go on with, by its own plan; ``wanted`` and ``out`` mean nothing then.
        doctor: Warnings of the doctor, for the record.

    Raises:
        UserError: bad input, port taken, disk full; the run cannot go on because something changed.
        KeyboardInterrupt: interrupted; the run folder says so and keeps what was measured.
    """
    plan = plan_config(rig, resumed_wanted(resumed.manifest.plan) if resumed else wanted)
    if resumed is not None:
        check_plan(resumed.manifest, plan)
    scenarios = {name: load_scenario(name) for name in plan.scenarios}
    commands = {
        name: command_for(scenario, rig, models, port) for name, scenario in scenarios.items()
    }
    pair_plan = None
    if models.plan_dir is not None:
        pair_plan = Plan.load(Path(models.plan_dir))
        prompts = PromptSource.planted(pair_plan, plan.input_tokens)
    else:
        prompts = PromptSource.chat(tokenize_chat(models.target, rig.server.trust_remote_code))
    clock = clock_for(plan, golden, earlier)
    recorded = commands
    if resumed is not None and resumed.port:
        # Another port than the run had changes nothing that is measured.
        recorded = {n: command_for(s, rig, models, resumed.port) for n, s in scenarios.items()}
    manifest = _manifest(command, rig, scenarios, recorded, plan, backend, backend_reason, models)
    if resumed is None:
        folder = RunFolder.create(out or paths.runs_dir(), rig.name)
        manifest = manifest.model_copy(update={"run_id": folder.path.name})
    else:
        check_same(resumed.manifest, manifest)
        manifest = resumed.manifest.model_copy(update={"status": "running", "status_detail": ""})
        folder = RunFolder.reopen(resumed.path, resumed.start, command, time.time())
        resumed.tell(clock)
    manifest = manifest.model_copy(update={"doctor": list(doctor)})
    gpus = 0 if rig.match.gpu is None else rig.tensor_parallel
    with folder, sampling(folder.path, gpus=gpus, backend=backend.name):
        folder.write_manifest(manifest)
        observer.opened(folder.path)
        try:
            cut = measure(
                Measurement(
                    plan=plan,
                    rig=rig,
                    scenarios=scenarios,
                    commands=commands,
                    backend=backend,
                    folder=folder,
                    prompts=prompts,
                    observer=observer,
                    clock=clock,
                    pair_plan=pair_plan,
                    more=(lambda n: more(folder.path, n)) if more else (lambda _: ()),
                    stream=plan.stream,
                    ends_at=ends_at,
                    resumed=resumed,
                )
            )
            failures = read_run(folder.path).failures
            status: RunStatus = "failed" if failures else "interrupted" if cut else "complete"
            detail = failures[0].sentence if failures else cut
        except KeyboardInterrupt:
            _close(folder, manifest, "interrupted", "interrupted by the user")
            raise
        except Exception as error:
            _close(folder, manifest, "failed", str(error).split("\n")[0])
            raise
        folder.write_manifest(
            manifest.model_copy(update={"status": status, "status_detail": detail})
        )
        return folder.path


def _close(folder: RunFolder, manifest: Manifest, status: RunStatus, detail: str) -> None:
    """Note how a run ended while an error is on its way: the first one is to be told, not a second one."""
    with contextlib.suppress(UserError):
        folder.write_manifest(
            manifest.model_copy(update={"status": status, "status_detail": detail})
        )
