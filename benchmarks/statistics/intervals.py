"""Do the intervals cover? Coverage of the kit's methods and of those that were turned down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log

import numpy as np
from scipy import special

from benchmarks.statistics.world import LEVELS, SCENARIOS, UNEVEN, World, golden, ratios
from kit import stats

Row = list[str]
NOISES = ((0.005, 0.01), (0.01, 0.01), (0.01, 0.02), (0.02, 0.02), (0.03, 0.03), (0.04, 0.03))
RESAMPLES = 400


def percent(x: float, digits: int = 1) -> str:
    return f"{100 * x:.{digits}f} %"


def name(noise: tuple[float, float]) -> str:
    return f"{100 * noise[0]:g} % / {100 * noise[1]:g} %"


def covers(e: stats.Estimate, truth: float = 1.0) -> bool:
    return e.low <= truth <= e.high


def satterthwaite(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95 % interval of the logarithm from estimated variance components."""
    k, n = len(groups), len(groups[0])
    y = np.log(np.array(groups))
    within = y.var(axis=1, ddof=1).mean()
    between = max(0.0, y.mean(axis=1).var(ddof=1) - within / n)
    a, b = between / k, within / (k * n)
    df = (a + b) ** 2 / (a**2 / (k - 1) + b**2 / (k * (n - 1)))
    half = special.stdtrit(df, 0.975) * np.sqrt(a + b)
    return y.mean() - half, y.mean() + half


def hierarchical_bootstrap(
    groups: Sequence[Sequence[float]], rng: np.random.Generator
) -> tuple[float, float]:
    """Return the 95 % percentile interval from resampling launches, then sweeps within them."""
    y = np.log(np.array(groups))
    k, n = y.shape
    launches = rng.integers(0, k, (RESAMPLES, k, 1))
    sweeps = rng.integers(0, n, (RESAMPLES, k, n))
    low, high = np.quantile(y[launches, sweeps].mean(axis=(1, 2)), [0.025, 0.975])
    return low, high


def of_a_mean(runs: int, rng: np.random.Generator) -> Iterator[Row]:
    yield [
        "launches",
        "noise launch / sweep",
        "t on launches (kit)",
        "half-width",
        "Satterthwaite",
        "hierarchical bootstrap",
    ]
    for launches in (2, 3, 5):
        for noise in ((0.0, 0.01), *NOISES[1::2]):
            hits = np.zeros(3)
            widths = []
            # Each cell of a run is a sample of its own here.
            for _ in range(max(1, runs // (SCENARIOS * LEVELS))):
                data = World(*noise, shared=0).measure(rng, launches)
                for groups in data.reshape(-1, launches, 3).tolist():
                    e = stats.hierarchical_ci(groups)
                    s, b = satterthwaite(groups), hierarchical_bootstrap(groups, rng)
                    hits += [covers(e), s[0] <= 0 <= s[1], b[0] <= 0 <= b[1]]
                    widths.append(e.relative_half_width)
            share = hits / len(widths)
            yield [
                str(launches),
                name(noise),
                percent(share[0]),
                percent(float(np.median(widths))),
                percent(share[1]),
                percent(share[2]),
            ]


def of_a_ratio_to_golden(runs: int, rng: np.random.Generator) -> Iterator[Row]:
    yield [
        "launches run / golden",
        "case",
        "alone",
        "half-width",
        "shared",
        "worst level",
        "half-width ",
    ]
    base = World(0.01, 0.01)
    cases = {
        "noise even": (base, base),
        "noise of levels 0.6–1.3": (
            World(0.01, 0.01, by_level=UNEVEN),
            World(0.01, 0.01, by_level=UNEVEN),
        ),
        "noise of scenarios 0.6, 1, 1.4": (
            World(0.01, 0.01, by_scenario=(0.6, 1.0, 1.4)),
            World(0.01, 0.01, by_scenario=(0.6, 1.0, 1.4)),
        ),
        "run 2 × as noisy as golden": (base.louder(2), base),
        "5 % of sweeps lose 10 %": (
            World(0.01, 0.01, bad_sweeps=0.05),
            World(0.01, 0.01, bad_sweeps=0.05),
        ),
    }
    for launches, in_golden in ((1, 5), (2, 3), (2, 5), (3, 5), (4, 5)):
        for case, (here, there) in cases.items():
            alone, shared = np.zeros((SCENARIOS, LEVELS)), np.zeros((SCENARIOS, LEVELS))
            wide, narrow = [], []
            rounds = max(1, runs // 24)
            for _ in range(rounds):
                references = golden(there.measure(rng, in_golden))
                data = here.measure(rng, launches)
                for cell, e in ratios(data, references, share=False).items():
                    alone[cell] += covers(e)
                    wide.append(e.relative_half_width)
                for cell, e in ratios(data, references).items():
                    shared[cell] += covers(e)
                    narrow.append(e.relative_half_width)
            by_row = np.minimum(shared.mean(axis=1).min(), shared.mean(axis=0).min())
            yield [
                f"{launches} / {in_golden}",
                case,
                percent(alone.mean() / rounds),
                percent(float(np.median(wide))),
                percent(shared.mean() / rounds),
                percent(by_row / rounds),
                percent(float(np.median(narrow))),
            ]


def of_a_published_number(runs: int, rng: np.random.Generator) -> Iterator[Row]:
    yield [
        "launches",
        "noise launch / sweep",
        "coverage",
        "half-width",
        "coverage if the number is taken as exact",
    ]
    for launches in (3, 5):
        for noise in NOISES[1:4]:
            hits, exact, widths = 0, 0, []
            rounds = max(1, runs // 24)
            for _ in range(rounds):
                world = World(*noise)
                there, here = world.measure(rng, 1, 1), world.measure(rng, launches)
                for cell, reference in golden(there).items():
                    groups = here[cell].tolist()
                    e = stats.ratio_to_reference(groups, reference)
                    hits += covers(e)
                    exact += covers(stats.ratio_to_reference(groups, reference.value))
                    widths.append(e.relative_half_width)
            n = len(widths)
            yield [
                str(launches),
                name(noise),
                percent(hits / n),
                percent(float(np.median(widths))),
                percent(exact / n),
            ]


def of_a_ratio_within_a_run(runs: int, rng: np.random.Generator) -> Iterator[Row]:
    yield ["launches", "case", "unpaired", "half-width", "paired", "half-width "]
    for launches in (2, 3, 4, 5):
        for case, drift, factor in (
            ("equal noise", 0.0, 1.0),
            ("numerator 2 × as noisy", 0.0, 2.0),
            ("drift of 3 % over the run", 0.03, 1.0),
        ):
            hits, widths = np.zeros(2), []
            world = World(0.01, 0.01, shared=0, by_scenario=(factor, 1.0, 1.0))
            # Slots in time: A B, B A, A B, …
            slots = np.arange(2 * launches).reshape(launches, 2)
            slots[1::2] = slots[1::2, ::-1]
            lift = np.exp(drift * slots / max(1, 2 * launches - 1))
            for _ in range(max(1, runs // LEVELS)):
                data = world.measure(rng, launches)
                for level in range(LEVELS):
                    a = (data[0, level] * lift[:, :1]).tolist()
                    b = (data[1, level] * lift[:, 1:]).tolist()
                    free, pair = stats.ratio_ci(a, b), stats.ratio_ci(a, b, paired=True)
                    hits += [covers(free), covers(pair)]
                    widths.append((free.relative_half_width, pair.relative_half_width))
            share = hits / len(widths)
            half = np.median(np.array(widths), axis=0)
            yield [
                str(launches),
                case,
                percent(share[0]),
                percent(half[0]),
                percent(share[1]),
                percent(half[1]),
            ]


def of_mean_and_median(runs: int, rng: np.random.Generator) -> Iterator[Row]:
    yield ["values", "distribution", "mean: t", "median: BCa"]
    for n in (3, 6, 10, 30):
        for kind in ("normal", "log-normal, σ = 0.5"):
            hits = np.zeros(2)
            rounds = max(50, runs // 8)
            for _ in range(rounds):
                z = rng.standard_normal(n)
                x = 10 + z if kind == "normal" else np.exp(0.5 * z)
                truth = 10.0 if kind == "normal" else float(np.exp(0.125))
                centre = 10.0 if kind == "normal" else 1.0
                hits += [covers(stats.mean_ci(x), truth), covers(stats.median_ci(x), centre)]
            median = percent(hits[1] / rounds) if n >= 6 else "no interval"
            yield [str(n), kind, percent(hits[0] / rounds), median]


def of_launch_summaries(runs: int, rng: np.random.Generator) -> Iterator[Row]:
    yield [
        "launches",
        "bad sweeps",
        "bias of the mean",
        "half-width",
        "bias of the median",
        "half-width ",
    ]
    for launches in (3, 5):
        for bad in (0.0, 0.05, 0.10):
            world = World(0.01, 0.01, shared=0, bad_sweeps=bad)
            rows = []
            for _ in range(max(1, runs // 24)):
                for groups in world.measure(rng, launches).reshape(-1, launches, 3).tolist():
                    mean = stats.hierarchical_ci(groups)
                    median = stats.hierarchical_ci(groups, "median")
                    rows.append(
                        [
                            log(mean.value),
                            mean.relative_half_width,
                            log(median.value),
                            median.relative_half_width,
                        ]
                    )
            found = np.array(rows)
            yield [
                str(launches),
                percent(bad, 0),
                percent(found[:, 0].mean(), 2),
                percent(float(np.median(found[:, 1]))),
                percent(found[:, 2].mean(), 2),
                percent(float(np.median(found[:, 3]))),
            ]
