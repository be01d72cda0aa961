"""What a run does in which order, and how long it will still take. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kit.records import Phase, PlanConfig, RunData

Kind = Literal["start", "warm", "sweep"]
# Before anything was measured: seconds of a server start, and output tokens per second of one request.
FIRST_GUESS_START_S = 60.0
FIRST_GUESS_TOK_S = 100.0
_PHASE: dict[Kind, Phase] = {"warm": "warmup", "sweep": "measure"}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that takes time: a server start, or a pass of one level."""

    kind: Kind
    scenario: str
    launch: int
    level: int = 0
    sweep: int = 0


def launch_order(scenarios: Sequence[str], launch: int) -> list[str]:
    """Return the scenarios of one launch: A B C, then C B A, so that a drift of the machine hits all alike."""
    return list(scenarios) if launch % 2 == 0 else list(reversed(scenarios))


def steps_of_server(plan: PlanConfig, scenario: str, launch: int) -> Iterator[Step]:
    """Yield the steps of one server: start, two warm passes of every level, then the sweeps."""
    yield Step("start", scenario, launch)
    for level in plan.levels:
        for warm in range(2):
            yield Step("warm", scenario, launch, level, warm)
    for sweep in range(plan.sweeps):
        for level in plan.levels:
            yield Step("sweep", scenario, launch, level, sweep)


def all_steps(plan: PlanConfig) -> list[Step]:
    """Return every step of the planned launches, in order."""
    return [
        step
        for launch in range(plan.launches)
        for scenario in launch_order(plan.scenarios, launch)
        for step in steps_of_server(plan, scenario, launch)
    ]


class Clock:
    """Estimates the time left from what steps of the same sort took so far.

    Args:
        plan: The plan.
        known_tok_s: Throughput by scenario and level from a golden file, to start with better than a guess.
    """

    def __init__(
        self, plan: PlanConfig, known_tok_s: dict[str, dict[int, float]] | None = None
    ) -> None:
        self._plan = plan
        self._known = known_tok_s or {}
        self._took: dict[tuple[str, str, int], float] = {}
        self._left: dict[Step, None] = dict.fromkeys(all_steps(plan))

    def _guess(self, kind: Kind, scenario: str, level: int) -> float:
        seen = self._took.get((kind, scenario, level))
        if seen is not None:
            return seen
        if kind == "start":
            starts = [s for (k, _, _), s in self._took.items() if k == "start"]
            return max(starts) if starts else FIRST_GUESS_START_S
        other: Kind = "sweep" if kind == "warm" else "warm"
        seen = self._took.get((other, scenario, level))
        if seen is not None:
            return seen * self._plan.tokens_in(_PHASE[kind]) / self._plan.tokens_in(_PHASE[other])
        tokens = self._plan.requests[level] * self._plan.tokens_in(_PHASE[kind])
        rate = self._known.get(scenario, {}).get(level) or FIRST_GUESS_TOK_S * level**0.7
        return tokens / rate

    def learn(self, run: RunData) -> None:
        """Take over what the steps of an earlier run took, for levels that sent as many tokens."""
        for launch in run.launches:
            self._took[("start", launch.scenario, 0)] = launch.ready_s
        for record in run.levels:
            asked = self._plan.requests.get(record.level, 0) * self._plan.tokens_in(record.phase)
            if asked and not record.failed and record.output_tokens == asked:
                kind: Kind = "warm" if record.phase == "warmup" else "sweep"
                self._took[(kind, record.scenario, record.level)] = record.wall_s

    def launch_s(self) -> float:
        """Return the estimated seconds of one launch of every scenario, its planned sweeps included."""
        launch_s, sweep_s = self.costs()
        return launch_s + self._plan.sweeps * sweep_s

    def costs(self) -> tuple[float, float]:
        """Return the estimated seconds of a launch with its warm-up but without sweeps, and of one sweep.

        Both are of all scenarios together.
        """
        launch_s = sweep_s = 0.0
        for scenario in self._plan.scenarios:
            for step in steps_of_server(self._plan, scenario, 0):
                guess = self._guess(step.kind, scenario, step.level)
                if step.kind != "sweep":
                    launch_s += guess
                elif step.sweep == 0:
                    sweep_s += guess
        return launch_s, sweep_s

    def left_s(self) -> float:
        """Return the estimated seconds left."""
        return sum(self._guess(s.kind, s.scenario, s.level) for s in self._left)

    def done(self, step: Step, seconds: float) -> None:
        """Note that ``step`` is over; steps outside the plan (further warm passes) only teach."""
        self._took[(step.kind, step.scenario, step.level)] = seconds
        self._left.pop(step, None)

    def skip_server(self, scenario: str, launch: int) -> None:
        """Forget the rest of a server that failed."""
        for step in [s for s in self._left if (s.scenario, s.launch) == (scenario, launch)]:
            del self._left[step]

    def skip_measured(self, scenario: str, launch: int, left: Collection[tuple[int, int]]) -> None:
        """Forget the passes of a server but those ``left`` (sweep, level), which an earlier attempt measured."""
        levels = {level for _, level in left}
        for step in [s for s in self._left if (s.scenario, s.launch) == (scenario, launch)]:
            measured = step.kind == "sweep" and (step.sweep, step.level) not in left
            if not left or measured or (step.kind == "warm" and step.level not in levels):
                del self._left[step]

    def add_launch(self, launch: int) -> None:
        """Add a launch that the plan did not have."""
        for scenario in launch_order(self._plan.scenarios, launch):
            self._left.update(dict.fromkeys(steps_of_server(self._plan, scenario, launch)))
