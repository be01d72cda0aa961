"""The types of a verdict: findings, levels, claims, cause. They are what ``verdict.json`` holds."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Status = Literal["REPRODUCED", "FASTER", "SLOWER", "INCONCLUSIVE", "NOT COMPARABLE", "INVALID"]
Severity = Literal["invalid", "warning", "note"]
LevelStatus = Literal["REPRODUCED", "FASTER", "SLOWER", "INCONCLUSIVE", "NO REFERENCE"]
ClaimStatus = Literal["holds", "holds within tolerance", "refuted", "open", "not measured"]
FactorName = Literal["effective concurrency", "accept length", "step time"]
# Where a change of a factor comes from: a cap on running requests, the load client, the load otherwise, the draft's
# guesses, the steps themselves.
Origin = Literal["cap", "client", "load", "draft", "steps"]

EXIT_CODES: dict[Status, int] = {
    "REPRODUCED": 0,
    "FASTER": 1,
    "SLOWER": 1,
    "INVALID": 3,
    "INCONCLUSIVE": 4,
    "NOT COMPARABLE": 5,
}


def count(n: int, word: str) -> str:
    """Return ``1 level`` or ``3 levels``."""
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Interval(_Frozen):
    """A value with its confidence interval; ``low`` and ``high`` are None when one pass cannot give one."""

    value: float
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    n: int = 1

    def text(self, digits: int = 3) -> str:
        """Return ``1.021 [1.004, 1.038]``, or ``1.021 (one pass, no interval)``."""
        if self.low is None or self.high is None:
            return f"{self.value:.{digits}f} (no interval from {self.n} launch)"
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


class Finding(_Frozen):
    """Something that was seen, why it matters, and what to do. ``id`` is stable and documented."""

    id: str
    severity: Severity
    seen: str
    why: str
    remedy: str
    scenario: str | None = None
    level: int | None = None


class LevelVerdict(_Frozen):
    """One scenario at one level against golden. Throughput in output tokens per second."""

    scenario: str
    level: int
    launches: int
    passes: int
    tok_s: Interval
    accept_length: float | None
    planned_accept_length: float | None
    expected_accept_length: float | None
    effective_concurrency: float
    step_time_s: float | None
    reference: float | None
    ratio: Interval | None
    tolerance: float | None
    status: LevelStatus
    replicate: bool = False


class ClaimVerdict(_Frozen):
    """A claim of shape: the ratio of two scenarios within this run, against its bound."""

    id: str
    text: str
    numerator: str
    denominator: str
    levels: list[int]
    ratio: Interval | None
    at_least: float | None
    at_most: float | None
    tolerance: float
    golden_ratio: float | None
    status: ClaimStatus
    per_level: dict[int, Interval] = {}


class FactorChange(_Frozen):
    """One factor of throughput against golden: 1.0 is unchanged.

    ``share`` is its part of the change of throughput (the three add up to 1); None where there was none.
    """

    factor: FactorName
    ratio: Interval
    moved: bool
    share: float | None = None


class Cause(_Frozen):
    """Which factor moved a level away from golden, in words and figures.

    ``main`` is the factor that explains most of the change, None if none moved beyond its noise. ``product_error`` is
    by how much, relatively, the three factors miss the measured throughput. ``witness`` says whose concurrency and step
    time they are: the server's log's, or the client's.
    """

    scenario: str
    level: int
    text: str
    main: FactorName | None = None
    origin: Origin | None = None
    witness: Literal["server", "client"] = "client"
    factors: list[FactorChange]
    product_error: float


class LevelEnergy(_Frozen):
    """What the output tokens of one scenario at one level cost, over its passes together.

    ``gap_s`` seconds of ``seconds`` are not in ``joules``: with any, the true figures are higher. ``source`` says what
    the joules are of (GPUs, or the processors' packages) and whether a counter or power over time gave them.
    ``passes_without`` counts passes that gave no joules, or whose requests failed; nothing of them is in the figures.
    """

    scenario: str
    level: int
    passes: int
    passes_without: int = 0
    seconds: float
    joules: float
    tokens: int
    joules_per_token: float
    gap_s: float = 0.0
    source: str


class Verdict(_Frozen):
    """The answer, with everything that led to it."""

    schema_version: int = 1
    status: Status
    exit_code: int
    headline: str
    run_id: str
    rig: str
    golden_source: str | None
    decided_by: Literal["levels", "claims"]
    comparable: str
    caveat: str
    findings: list[Finding]
    levels: list[LevelVerdict]
    claims: list[ClaimVerdict]
    causes: list[Cause]
    energy: list[LevelEnergy] = []
    # Why there is no energy; empty where there is some, and in verdicts from before it was told.
    energy_unavailable: str = ""
