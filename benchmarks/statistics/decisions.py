"""Are the verdicts right? An unchanged system, and one that lost 7 %, judged many times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.statistics.intervals import NOISES, Row, name, percent
from benchmarks.statistics.world import LEVELS, UNEVEN, Cell, World, golden, ratios
from kit import stats

LOSS = 0.07
CELLS_PER_RUN = 24
KIT = "Holm, band from noise (kit)"
CHANGES: dict[str, list[Cell]] = {
    "unchanged": [],
    "one scenario": [(0, c) for c in range(LEVELS)],
    "one level": [(0, 3)],
}
Rule = Callable[[dict[Cell, stats.Estimate], dict[Cell, float]], dict[Cell, stats.Call]]


def by_interval(
    found: dict[Cell, stats.Estimate], tolerances: dict[Cell, float]
) -> dict[Cell, stats.Call]:
    """Call a level different only if its whole interval lies outside the band."""
    names: dict[str, stats.Call] = {"inside": "same", "below": "lower", "above": "higher"}
    return {
        k: names.get(stats.equivalence(e, tolerances[k]), "undecided") for k, e in found.items()
    }


def fixed(found: dict[Cell, stats.Estimate]) -> dict[Cell, float]:
    return dict.fromkeys(found, stats.MIN_TOLERANCE)


def from_noise(found: dict[Cell, stats.Estimate]) -> dict[Cell, float]:
    return {k: stats.tolerance_for(e) for k, e in found.items()}


@dataclass
class Tally:
    """Counts over runs of one change."""

    runs: int = 0
    different: int = 0
    lower: int = 0
    same: int = 0
    launches: int = 0

    def add(self, calls: dict[Cell, stats.Call], changed: list[Cell], launches: int) -> None:
        self.runs += 1
        self.different += any(c in ("lower", "higher") for c in calls.values())
        self.lower += any(calls[c] == "lower" for c in changed)
        self.same += all(c == "same" for c in calls.values())
        self.launches += launches


def _changed(data: np.ndarray, cells: list[Cell]) -> np.ndarray:
    found = data.copy()
    for cell in cells:
        found[cell] *= 1 - LOSS
    return found


RULES: dict[str, tuple[Rule, Callable[..., dict[Cell, float]]]] = {
    "interval outside ±5 %": (by_interval, fixed),
    "Holm, band ±5 %": (stats.calls, fixed),
    KIT: (stats.calls, from_noise),
}


def _rows(tallies: dict[str, Tally]) -> Row:
    still, scenario, level = (tallies[k] for k in CHANGES)
    return [
        percent(still.different / still.runs),
        percent(still.same / still.runs, 0),
        percent(scenario.lower / scenario.runs, 0),
        percent(level.lower / level.runs, 0),
        percent(max(scenario.same / scenario.runs, level.same / level.runs)),
    ]


HEADS = [
    "false alarm",
    "REPRODUCED",
    "7 % off, one scenario: SLOWER",
    "one level: SLOWER",
    "7 % off: REPRODUCED",
]


def _judge(
    runs: int,
    rng: np.random.Generator,
    there: World,
    here: World,
    launches: int,
    in_golden: int = 5,
    rules: Sequence[str] = (KIT,),
) -> Iterator[tuple[str, Row]]:
    """Yield for each rule what it says of many runs."""
    tallies = {rule: {c: Tally() for c in CHANGES} for rule in rules}
    for _ in range(max(1, runs // CELLS_PER_RUN)):
        references = golden(there.measure(rng, in_golden))
        plain = here.measure(rng, launches)
        for change, cells in CHANGES.items():
            data = _changed(plain, cells)
            found = ratios(data, references)
            for rule in rules:
                decide, band = RULES[rule]
                tolerances = band(found)
                tallies[rule][change].add(decide(found, tolerances), cells, launches)
    for rule in rules:
        yield rule, _rows(tallies[rule])


def of_the_rules(runs: int, rng: np.random.Generator) -> Iterator[Row]:
    yield ["noise launch / sweep", "rule", *HEADS]
    for noise in NOISES:
        world = World(*noise, by_level=UNEVEN)
        for rule, row in _judge(runs, rng, world, world, 3, rules=list(RULES)):
            yield [name(noise), rule, *row]


def of_launches(runs: int, rng: np.random.Generator) -> Iterator[Row]:
    yield ["launches run / golden", "noise launch / sweep", *HEADS]
    for launches, in_golden in ((2, 3), (2, 5), (3, 5), (4, 5), (3, 10), (5, 10)):
        for noise in NOISES[1:5]:
            world = World(*noise, by_level=UNEVEN)
            for _, row in _judge(runs, rng, world, world, launches, in_golden):
                yield [f"{launches} / {in_golden}", name(noise), *row]


def of_failing_assumptions(runs: int, rng: np.random.Generator) -> Iterator[Row]:
    yield ["launches", "case", *HEADS]
    even = World(0.01, 0.01)
    odd = World(0.01, 0.01, by_scenario=(0.6, 1.0, 1.4), by_level=UNEVEN)
    shaken = World(0.01, 0.01, bad_sweeps=0.05)
    cases = {
        "levels of a launch move together": (World(0.01, 0.01, shared=1.0),) * 2,
        "levels of a launch move apart": (World(0.01, 0.01, shared=0.0),) * 2,
        "noise of levels and scenarios uneven": (odd, odd),
        "run 2 × as noisy as golden": (even, even.louder(2)),
        "5 % of sweeps lose 10 %": (shaken, shaken),
    }
    for launches in (2, 3):
        for case, (there, here) in cases.items():
            for _, row in _judge(runs, rng, there, here, launches):
                yield [str(launches), case, *row]


def of_adaptive_repetition(
    runs: int, rng: np.random.Generator, first: int = 3, cap: int = 6, in_golden: int = 5
) -> Iterator[Row]:
    """Add launches while any level is undecided, up to the cap; each look may be a false alarm."""
    yield ["noise launch / sweep", *HEADS, "mean launches: unchanged", "7 % off"]
    for noise in NOISES:
        tallies = {c: Tally() for c in CHANGES}
        world = World(*noise, by_level=UNEVEN)
        for _ in range(max(1, runs // CELLS_PER_RUN)):
            references = golden(world.measure(rng, in_golden))
            plain = world.measure(rng, cap)
            for change, cells in CHANGES.items():
                data = _changed(plain, cells)
                for launches in range(first, cap + 1):
                    part = data[:, :, :launches]
                    found = ratios(part, references)
                    calls = stats.calls(found, from_noise(found))
                    if "undecided" not in calls.values():
                        break
                tallies[change].add(calls, cells, launches)
        still, scenario = tallies["unchanged"], tallies["one scenario"]
        yield [
            name(noise),
            *_rows(tallies),
            f"{still.launches / still.runs:.1f}",
            f"{scenario.launches / scenario.runs:.1f}",
        ]
