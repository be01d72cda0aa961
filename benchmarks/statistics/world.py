"""A made-up laboratory: servers of known throughput, measured with noise at two levels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kit import stats

SCENARIOS = 3
LEVELS = 8
Cell = tuple[int, int]
# Noise of a level relative to the others: quiet at low concurrency, loud where requests overlap.
UNEVEN = (0.6, 0.7, 0.8, 1.0, 1.3, 1.3, 1.2, 1.2)
EVEN = (1.0,) * LEVELS


@dataclass(frozen=True)
class World:
    """Noise of a laboratory; throughput itself is 1 everywhere.

    Attributes:
        launch_cv: Noise between launches.
        sweep_cv: Noise between sweeps of a launch.
        shared: Part of a launch's variance that all its levels have in common.
        by_level: Factor on the noise of each level.
        by_scenario: Factor on the noise of each scenario.
        bad_sweeps: Chance that a sweep is disturbed and loses ``loss`` of its throughput.
        loss: See ``bad_sweeps``.
    """

    launch_cv: float
    sweep_cv: float
    shared: float = 0.5
    by_level: tuple[float, ...] = EVEN
    by_scenario: tuple[float, ...] = (1.0,) * SCENARIOS
    bad_sweeps: float = 0.0
    loss: float = 0.10

    def louder(self, factor: float) -> World:
        """Return the same laboratory with its noise scaled."""
        return replace(self, launch_cv=self.launch_cv * factor, sweep_cv=self.sweep_cv * factor)

    def measure(self, rng: np.random.Generator, launches: int, sweeps: int = 3) -> np.ndarray:
        """Return throughput of shape (scenarios, levels, launches, sweeps)."""
        shape = (SCENARIOS, LEVELS, launches)
        common = rng.standard_normal((SCENARIOS, 1, launches)) * np.sqrt(self.shared)
        own = rng.standard_normal(shape) * np.sqrt(1 - self.shared)
        noise = self.launch_cv * (common + own)[..., None] + self.sweep_cv * rng.standard_normal(
            (*shape, sweeps)
        )
        noise *= np.array(self.by_level)[None, :, None, None]
        noise *= np.array(self.by_scenario)[:, None, None, None]
        if self.bad_sweeps:
            noise += np.log1p(-self.loss) * (rng.random(noise.shape) < self.bad_sweeps)
        found: np.ndarray = np.exp(noise)
        return found


def golden(data: np.ndarray) -> dict[Cell, stats.Reference]:
    """Return what a golden file keeps of a run: the value and the two noises of each level."""
    found = {}
    for s in range(SCENARIOS):
        for c in range(LEVELS):
            groups = data[s, c].tolist()
            launches, n = len(groups), sum(map(len, groups))
            value = stats.hierarchical_ci(groups).value
            if launches < 2:
                found[s, c] = stats.Reference(value, 1, n)
                continue
            launch_cv, sweep_cv = stats.variance_components(groups)
            found[s, c] = stats.Reference(value, launches, n, launch_cv, sweep_cv)
    return found


def ratios(
    data: np.ndarray, references: dict[Cell, stats.Reference], *, share: bool = True
) -> dict[Cell, stats.Estimate]:
    """Return the ratio to golden of every scenario and level.

    With ``share`` the noise of the other scenarios at the same level, the run's and golden's, counts.
    """
    groups = {cell: data[cell].tolist() for cell in references}
    noises = {c: [stats.noise_of(groups[c]), references[c].noise] for c in references if share}

    def beside(cell: Cell) -> list[stats.Noise]:
        others = [(s, cell[1]) for s in range(SCENARIOS) if s != cell[0]]
        return [n for o in others for n in noises.get(o, ()) if n]

    return {
        cell: stats.ratio_to_reference(groups[cell], reference, beside=beside(cell))
        for cell, reference in references.items()
    }
