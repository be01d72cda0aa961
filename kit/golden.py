"""Golden files: committed reference numbers of one rig, with provenance and noise.

An unknown value is absent, never guessed. Older schemas are migrated on reading (:data:`MIGRATIONS`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from kit import paths
from kit.errors import UserError
from kit.runfolder import write_atomic
from kit.scenarios import Name
from kit.yamlio import StrictModel, explain, read_mapping

SCHEMA = 1
Level = Annotated[int, Field(ge=1, le=4096)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Cv = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Reference(StrictModel):
    """One reference number: a mean over ``n`` passes in ``launches`` server starts.

    ``launch_cv`` and ``sweep_cv`` are the two noise components, each relative to the mean.
    """

    value: Positive
    n: int = Field(default=1, ge=1)
    launches: int = Field(default=1, ge=1)
    launch_cv: Cv | None = None
    sweep_cv: Cv | None = None


class Factors(StrictModel):
    """The three factors of throughput at one level, by the client; two of them by the server's log as well."""

    effective_concurrency: Positive | None = None
    accept_length: Positive | None = None
    step_time_s: Positive | None = None
    decoding: Positive | None = Field(
        default=None, description="requests that the server decoded at once, mean over the pass"
    )
    decode_step_s: Positive | None = Field(
        default=None, description="seconds per step, by the server's log"
    )


class Claim(StrictModel):
    """A named ratio of two scenarios' throughput within one run, with its bound.

    ``levels`` lists the levels that it speaks about. With ``replicates`` they are one experiment repeated and
    judged together; otherwise each is judged alone and all must hold.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,80}$")]
    text: str = Field(min_length=1, max_length=200)
    numerator: Name
    denominator: Name
    levels: list[Level] = Field(min_length=1)
    at_least: Positive | None = None
    at_most: Positive | None = None
    replicates: bool = False
    golden_ratio: Positive | None = Field(default=None, description="the ratio in the reference")

    @model_validator(mode="after")
    def _bounds(self) -> Claim:
        if self.at_least is None and self.at_most is None:
            raise ValueError("a claim needs at_least, at_most or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError("at_least is above at_most")
        return self


class Tolerance(StrictModel):
    """How far a level's ratio to golden may be from 1: never under ``floor``, more if the noise asks for it."""

    floor: Annotated[float, Field(gt=0, lt=1)] = 0.05
    accept_length: Annotated[float, Field(gt=0, le=1)] = 0.1


class Provenance(StrictModel):
    """Where the numbers come from."""

    text: str
    date: str | None = None
    kit_version: str | None = None
    git_commit: str | None = None
    image_digest: str | None = None
    patches: list[str] = Field(default_factory=list)
    run_id: str | None = None


class Golden(StrictModel):
    """A golden file."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    rig: Name
    source: Literal["published", "measured"]
    provenance: Provenance
    protocol: Literal["published", "steady"]
    decides: Literal["levels", "claims"] = Field(
        default="levels",
        description="claims: absolute throughput is reported, the claims alone decide",
    )
    fingerprint: dict[str, Any] = Field(default_factory=dict)
    output_tokens: int | None = None
    requests: dict[Level, int] = Field(default_factory=dict)
    throughput: dict[Name, dict[Level, Reference]] = Field(default_factory=dict)
    factors: dict[Name, dict[Level, Factors]] = Field(default_factory=dict)
    claims: list[Claim] = Field(default_factory=list)
    tolerance: Tolerance = Field(default_factory=Tolerance)
    replicates_from: Level | None = Field(
        default=None,
        description="levels from here on are replicates of one experiment (30 requests a level)",
    )

    @model_validator(mode="after")
    def _claims_differ(self) -> Golden:
        ids = [claim.id for claim in self.claims]
        if len(ids) != len(set(ids)):
            raise ValueError("two claims have the same id")
        return self

    def reference(self, scenario: str, level: int) -> Reference | None:
        """Return the reference throughput, None where none is known."""
        return self.throughput.get(scenario, {}).get(level)

    def factors_at(self, scenario: str, level: int) -> Factors:
        """Return the reference factors, empty where none are known."""
        return self.factors.get(scenario, {}).get(level, Factors())


# From schema N to N+1, in order. There is only one schema so far.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def migrate(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Bring the data of an older golden file to today's schema.

    Raises:
        UserError: the schema is unknown or newer.
    """
    while True:
        version = data.get("schema")
        if version == SCHEMA:
            return data
        step = MIGRATIONS.get(version) if isinstance(version, int) else None
        if step is None:
            raise UserError(
                f"The golden file {path} has schema {version!r}; this kit reads {SCHEMA}.",
                "Use a newer kit, or correct the key `schema`.",
            )
        data = step(data)


def read_golden(path: Path) -> Golden:
    """Read a golden file of any known schema.

    Raises:
        UserError: missing, malformed, or of an unknown schema.
    """
    data = migrate(read_mapping(path, "golden file"), path)
    try:
        return Golden.model_validate(data)
    except ValidationError as error:
        raise UserError(
            f"The golden file {path} is not right: {explain(error).rstrip('.')}.",
            "Correct that key.",
        ) from None


def golden_path(rig: str) -> Path:
    """Return where the golden file of a rig lies.

    Raises:
        UserError: no name of a rig. It may come from a run folder that somebody else made.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", rig):
        raise UserError(f"{rig!r} is no name of a rig.", "Names are a-z, 0-9 and dashes.")
    return paths.golden_dir() / f"{rig}.yaml"


def golden_for(rig: str) -> Golden | None:
    """Return the golden file of a rig, None if there is none yet.

    Raises:
        UserError: it is malformed, or names another rig.
    """
    path = golden_path(rig)
    if not path.is_file():
        return None
    golden = read_golden(path)
    if golden.rig != rig:
        raise UserError(f"The golden file {path} is for the rig {golden.rig!r}.", "Rename it.")
    return golden


class _Dumper(yaml.SafeDumper):
    """Keeps small mappings and lists of plain values on one line: a golden file is read by people."""


def _represent(dumper: yaml.SafeDumper, data: dict[Any, Any]) -> yaml.Node:
    flow = len(data) <= 6 and not any(isinstance(v, (dict, list)) for v in data.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=flow)


def _represent_list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    flow = not any(isinstance(v, (dict, list)) for v in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


_Dumper.add_representer(dict, _represent)
_Dumper.add_representer(list, _represent_list)


def to_yaml(golden: Golden) -> str:
    """Return the text of a golden file; reading it gives the same golden back."""
    data = golden.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=False)
    data = {key: value for key, value in data.items() if value not in ({}, [])}
    for claim in data.get("claims", []):
        if not claim["replicates"]:
            del claim["replicates"]
    # JSON mode turns level keys into strings; YAML should show numbers.
    for table in ("throughput", "factors"):
        if table in data:
            data[table] = {
                s: {int(c): v for c, v in levels.items()} for s, levels in data[table].items()
            }
    if "requests" in data:
        data["requests"] = {int(c): n for c, n in data["requests"].items()}
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def write_golden(golden: Golden, path: Path) -> None:
    """Write a golden file atomically."""
    write_atomic(path, to_yaml(golden).encode())
