"""Scenarios and rigs: what is served, on which class of machine, with which command line.

A *scenario* says how the engine decodes (no speculation, EAGLE-3 on the v1 or the v2 worker). A *rig* says
what makes two numbers comparable: machine class, model pair, engine settings, load. Both are YAML files; this
module reads and validates them and builds the server's argv and environment. It starts nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from kit import paths
from kit.errors import UserError
from kit.yamlio import StrictModel, read_model

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")]
Scalar = bool | int | float | str
FlagValue = Scalar | list[Scalar]
Flags = dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")], FlagValue]
Environment = dict[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")], str]
PatchId = Annotated[str, Field(pattern=r"^\d{4}$")]
Worker = Literal["plain", "v1", "v2"]

# Settings that the kit itself decides; a file that sets them would silently fight it.
RESERVED_FLAGS = frozenset(
    {
        "model-path",
        "host",
        "port",
        "tp",
        "tp-size",
        "tensor-parallel-size",
        "max-running-requests",
        "speculative-algorithm",
        "speculative-draft-model-path",
        "speculative-num-steps",
        "speculative-eagle-topk",
        "speculative-num-draft-tokens",
        "trust-remote-code",
    }
)
# SGLang puts its gRPC port this far above the HTTP port and refuses to start when that is no port any more.
GRPC_OFFSET = 10000
SPEC_V2_SWITCH = "SGLANG_ENABLE_SPEC_V2"


def _check_flags(flags: Flags) -> Flags:
    taken = sorted(RESERVED_FLAGS & flags.keys())
    if taken:
        raise ValueError(f"--{taken[0]} is set by the kit and cannot be given here")
    return flags


class Speculative(StrictModel):
    """EAGLE-3 drafting: ``num_steps`` draft steps, ``topk`` candidates a step."""

    algorithm: Literal["EAGLE3"] = "EAGLE3"
    num_steps: int = Field(ge=1, le=16)
    topk: int = Field(ge=1, le=16)
    num_draft_tokens: int = Field(
        ge=2, le=64, description="tokens verified per step, root included"
    )

    @model_validator(mode="after")
    def _possible(self) -> Speculative:
        if self.topk == 1 and self.num_draft_tokens != self.num_steps + 1:
            raise ValueError(
                f"with topk 1 the draft is a chain, so num_draft_tokens must be num_steps + 1 = "
                f"{self.num_steps + 1}, not {self.num_draft_tokens}"
            )
        nodes = 1 + self.topk + (self.num_steps - 1) * self.topk**2
        if self.num_draft_tokens > nodes:
            raise ValueError(
                f"a tree of {self.num_steps} steps at topk {self.topk} has at most {nodes} tokens, "
                f"so num_draft_tokens cannot be {self.num_draft_tokens}"
            )
        return self


class Scenario(StrictModel):
    """One way to serve the model pair."""

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    title: str = Field(min_length=1, max_length=120)
    kind: Literal["core", "variant"] = "core"
    worker: Worker
    speculative: Speculative | None = None
    args: Flags = Field(default_factory=dict, description="further server flags, without --")
    env: Environment = Field(default_factory=dict)
    patches: list[PatchId] = Field(
        default_factory=list,
        description="ids of patches without which this scenario is meaningless",
    )

    _flags = field_validator("args")(_check_flags)

    @model_validator(mode="after")
    def _possible(self) -> Scenario:
        if (self.worker == "plain") != (self.speculative is None):
            raise ValueError("worker: plain goes without a `speculative` block, v1 and v2 need one")
        if self.speculative and self.worker == "v2" and self.speculative.topk != 1:
            raise ValueError(
                f"the v2 worker takes topk 1 only, not {self.speculative.topk} "
                "(SGLang would silently fall back to v1)"
            )
        if SPEC_V2_SWITCH in self.env:
            raise ValueError(f"{SPEC_V2_SWITCH} follows from `worker` and cannot be set in env")
        return self


class PlantedPairConfig(StrictModel):
    """A pair made on the spot; the fields are those of :class:`kit.planted.PairSpec`."""

    kind: Literal["planted"]
    hidden: int = Field(ge=32)
    layers: int = Field(ge=3)
    intermediate: int = Field(ge=32)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    vocab: int = Field(ge=64)
    p: float = Field(ge=0, le=1)
    q: float = Field(ge=0, le=1)
    seed: int = 0
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    max_positions: int = Field(default=8192, ge=256)


class PathsPairConfig(StrictModel):
    """Real weights: folders named by environment variables, so that no rig file holds a private path."""

    kind: Literal["paths"]
    target_env: str = "MODEL_PATH"
    draft_env: str = "DRAFT_MODEL_PATH"


PairConfig = Annotated[PlantedPairConfig | PathsPairConfig, Field(discriminator="kind")]


class Match(StrictModel):
    """Which hosts a rig is for."""

    gpu: str | None = Field(description="regular expression on the GPU's name; null: no GPU")
    min_count: int = Field(default=1, ge=1)

    @field_validator("gpu")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
        return value


class LoadConfig(StrictModel):
    """What the load client sends. Request counts: ``published`` 30 a level, ``steady`` max(min, per_slot*C)."""

    levels: list[Annotated[int, Field(ge=1, le=4096)]] = Field(min_length=1)
    input_tokens: int = Field(default=64, ge=1)
    output_tokens: int = Field(default=200, ge=2)
    protocol: Literal["published", "steady"] = "steady"
    min_requests: int = Field(default=30, ge=1)
    requests_per_slot: int = Field(default=4, ge=1)
    request_timeout_s: float = Field(default=300, gt=0)

    @field_validator("levels")
    @classmethod
    def _ascending(cls, value: list[int]) -> list[int]:
        if sorted(set(value)) != value:
            raise ValueError("levels must ascend without repeats")
        return value

    def requests_at(self, concurrency: int, protocol: str | None = None) -> int:
        """Return how many requests a level of ``concurrency`` sends."""
        if (protocol or self.protocol) == "published":
            return 30
        return max(self.min_requests, self.requests_per_slot * concurrency)


class Repetition(StrictModel):
    """How often everything is measured before and after looking at the spread."""

    launches: int = Field(default=2, ge=1)
    sweeps: int = Field(default=3, ge=1)
    max_launches: int = Field(default=4, ge=1)
    max_warm_passes: int = Field(default=4, ge=1)
    # A warm-up pass must reach each batch size and kernel, not each position: shorter answers do.
    warm_output_tokens: int | None = Field(default=None, ge=2)

    @model_validator(mode="after")
    def _caps(self) -> Repetition:
        if self.max_launches < self.launches:
            raise ValueError("max_launches must not be below launches")
        return self


class ServerConfig(StrictModel):
    """Engine settings of a rig."""

    args: Flags = Field(default_factory=dict)
    env: Environment = Field(default_factory=dict)
    startup_timeout_s: float = Field(default=600, gt=0)
    trust_remote_code: bool = Field(
        default=False, description="let the server run Python code from the model's folder"
    )
    cpu_plugin: bool = False
    patches: list[PatchId] = Field(
        default_factory=list, description="ids of patches without which these flags mean nothing"
    )
    log_must_show: list[str] = Field(
        default_factory=list,
        description="texts that a server's log must hold, or it does not run what the flags ask for",
    )

    _flags = field_validator("args")(_check_flags)


class Override(StrictModel):
    """What a rig changes in one scenario."""

    args: Flags = Field(default_factory=dict)
    env: Environment = Field(default_factory=dict)

    _flags = field_validator("args")(_check_flags)


class Rig(StrictModel):
    """Machine class, model pair, engine settings and load: what makes numbers comparable."""

    schema_version: Literal[1] = Field(alias="schema")
    name: Name
    title: str = Field(min_length=1, max_length=120)
    match: Match
    pair: PairConfig
    tensor_parallel: int = Field(default=1, ge=1)
    max_running_requests: int = Field(ge=1)
    server: ServerConfig = Field(default_factory=ServerConfig)
    overrides: dict[Name, Override] = Field(default_factory=dict)
    load: LoadConfig
    repetition: Repetition = Field(default_factory=Repetition)
    caveat: str = Field(default="", description="shown wherever this rig's numbers are shown")

    @model_validator(mode="after")
    def _capacity(self) -> Rig:
        if self.max_running_requests < max(self.load.levels):
            raise ValueError(
                f"max_running_requests ({self.max_running_requests}) is below the highest level "
                f"({max(self.load.levels)}): the server would cap the concurrency"
            )
        return self


class ModelPaths(StrictModel):
    """Where the two models lie. ``plan_dir`` is the planted pair's folder, None for real weights."""

    target: str
    draft: str
    plan_dir: str | None = None


class ServerCommand(StrictModel):
    """The exact command of a server: arguments after the interpreter, and the environment it adds."""

    scenario: str
    rig: str
    argv: list[str]
    env: dict[str, str]


def _load_named(folder: Path, name: str, what: str) -> Path:
    path = folder / f"{name}.yaml"
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name) or not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml"))) or "none"
        raise UserError(f"There is no {what} named {name!r}.", f"Known: {known}.")
    return path


def load_scenario(name: str) -> Scenario:
    """Read the scenario ``name`` from ``scenarios/NAME.yaml``.

    Raises:
        UserError: unknown, malformed, or a name that differs from the file's.
    """
    path = _load_named(paths.scenarios_dir(), name, "scenario")
    scenario = read_model(Scenario, path, "scenario file")
    if scenario.name != path.stem:
        raise UserError(
            f"The scenario file {path} says name: {scenario.name}.", "Name and file must agree."
        )
    return scenario


def all_scenarios() -> list[Scenario]:
    """Return every scenario, core ones first."""
    found = [load_scenario(p.stem) for p in sorted(paths.scenarios_dir().glob("*.yaml"))]
    return sorted(found, key=lambda s: (s.kind != "core", s.name))


def load_rig(name: str) -> Rig:
    """Read the rig ``name`` from ``scenarios/rigs/NAME.yaml``.

    Raises:
        UserError: unknown, malformed, or a name that differs from the file's.
    """
    path = _load_named(paths.rigs_dir(), name, "rig")
    rig = read_model(Rig, path, "rig file")
    if rig.name != path.stem:
        raise UserError(f"The rig file {path} says name: {rig.name}.", "Name and file must agree.")
    return rig


def all_rigs() -> list[Rig]:
    """Return every rig, by name."""
    return [load_rig(p.stem) for p in sorted(paths.rigs_dir().glob("*.yaml"))]


def pick_rig(gpus: list[str], rigs: list[Rig] | None = None) -> Rig:
    """Choose the rig for a host.

    Args:
        gpus: Names of the host's GPUs, empty for none.
        rigs: The rigs to choose from; all of the project's when None.

    Raises:
        UserError: none fits, or several fit equally well.
    """
    rigs = all_rigs() if rigs is None else rigs
    fitting: list[Rig] = []
    for rig in rigs:
        wanted = rig.match.gpu
        if wanted is None:
            if not gpus:
                fitting.append(rig)
        elif sum(bool(re.search(wanted, name)) for name in gpus) >= rig.match.min_count:
            fitting.append(rig)
    # A rig for a named card is more specific than one for any card.
    named = [rig for rig in fitting if rig.match.gpu not in (None, ".", ".*")]
    fitting = named or fitting
    if len(fitting) > 1:
        names = ", ".join(rig.name for rig in fitting)
        raise UserError(f"More than one rig fits this host: {names}.", "Choose with --rig.")
    if not fitting:
        seen = ", ".join(gpus) or "no GPU"
        known = ", ".join(rig.name for rig in rigs)
        raise UserError(f"No rig fits this host ({seen}).", f"Choose with --rig; known: {known}.")
    return fitting[0]


def model_paths(
    rig: Rig, planted_dir: Path, environ: Mapping[str, str] | None = None
) -> ModelPaths:
    """Return where the models of ``rig`` lie.

    Args:
        rig: The rig.
        planted_dir: Where its planted pair lies or will be made.
        environ: Environment to read ``MODEL_PATH`` and ``DRAFT_MODEL_PATH`` from.

    Raises:
        UserError: a real pair's variable is not set or names no folder.
    """
    if isinstance(rig.pair, PlantedPairConfig):
        return ModelPaths(
            target=str(planted_dir / "target"),
            draft=str(planted_dir / "draft"),
            plan_dir=str(planted_dir),
        )
    environ = os.environ if environ is None else environ
    found = []
    for variable, what in ((rig.pair.target_env, "target"), (rig.pair.draft_env, "EAGLE-3 draft")):
        value = environ.get(variable, "")
        if not value:
            raise UserError(
                f"The rig {rig.name} serves real weights and {variable} is not set.",
                f"Set {variable} to the folder of the {what} model.",
            )
        if not (Path(value) / "config.json").is_file():
            raise UserError(
                f"{variable} names {value}, which holds no config.json.",
                f"Set it to the folder of the {what} model.",
            )
        found.append(value)
    return ModelPaths(target=found[0], draft=found[1])


def _flag(name: str, value: FlagValue) -> list[str]:
    if value is False:
        return []
    if value is True:
        return [f"--{name}"]
    return [f"--{name}", *map(str, value if isinstance(value, list) else [value])]


def effective_args(scenario: Scenario, rig: Rig) -> Flags:
    """Return the flags beyond the kit's own: the rig's, the scenario's over them, the rig's overrides over both."""
    override = rig.overrides.get(scenario.name, Override())
    return {**rig.server.args, **scenario.args, **override.args}


def plain_above(scenario: Scenario, rig: Rig) -> int | None:
    """Return the batch size above which ``scenario`` decodes plainly on ``rig`` (patch 0001); None: it never does."""
    threshold = effective_args(scenario, rig).get("speculative-disable-batch-threshold")
    return int(threshold) if isinstance(threshold, int | str) and int(threshold) > 0 else None


def server_command(
    scenario: Scenario, rig: Rig, models: ModelPaths, *, host: str = "127.0.0.1", port: int = 30000
) -> ServerCommand:
    """Build the server's argv (after the Python interpreter) and the environment that the kit adds.

    The same inputs always give the same command. Scenario settings win over the rig's, the rig's per-scenario
    overrides over both.
    """
    override = rig.overrides.get(scenario.name, Override())
    argv = ["-m", "sglang.launch_server", "--model-path", models.target]
    argv += ["--host", host, "--port", str(port)]
    argv += ["--tp-size", str(rig.tensor_parallel)]
    argv += ["--max-running-requests", str(rig.max_running_requests)]
    if rig.server.trust_remote_code:
        argv += ["--trust-remote-code"]
    flags = effective_args(scenario, rig)
    env = {**rig.server.env, **scenario.env, **override.env}
    if port > 65535 - GRPC_OFFSET:
        env.setdefault("SGLANG_GRPC_PORT", str(port - GRPC_OFFSET))
    if scenario.speculative:
        spec = scenario.speculative
        argv += ["--speculative-algorithm", spec.algorithm]
        argv += ["--speculative-draft-model-path", models.draft]
        argv += ["--speculative-num-steps", str(spec.num_steps)]
        argv += ["--speculative-eagle-topk", str(spec.topk)]
        argv += ["--speculative-num-draft-tokens", str(spec.num_draft_tokens)]
        env[SPEC_V2_SWITCH] = "True" if scenario.worker == "v2" else "False"
    for name in sorted(flags):
        argv += _flag(name, flags[name])
    return ServerCommand(scenario=scenario.name, rig=rig.name, argv=argv, env=env)
