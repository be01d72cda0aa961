"""Print the tables. ``python -m benchmarks.statistics [--samples N] [--seed S] [--only WORD]``."""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.statistics import decisions, intervals

TABLES = {
    "Interval of a mean": intervals.of_a_mean,
    "Interval of a ratio to golden": intervals.of_a_ratio_to_golden,
    "Interval of a ratio to a published number": intervals.of_a_published_number,
    "Interval of a ratio within a run": intervals.of_a_ratio_within_a_run,
    "Interval of a plain sample": intervals.of_mean_and_median,
    "Mean or median of a launch's sweeps": intervals.of_launch_summaries,
    "Verdicts by rule, three launches against a golden of five": decisions.of_the_rules,
    "Verdicts by number of launches": decisions.of_launches,
    "Verdicts when assumptions fail, noise 1 % / 1 %": decisions.of_failing_assumptions,
    "Verdicts with adaptive repetition": decisions.of_adaptive_repetition,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.statistics", description=__doc__)
    parser.add_argument("--samples", type=int, default=12000, help="intervals behind each figure")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of a table's title")
    options = parser.parse_args()
    begun = time.monotonic()
    for i, (title, table) in enumerate(TABLES.items()):
        if options.only.lower() not in title.lower():
            continue
        rows = table(options.samples, np.random.default_rng([options.seed, i]))
        head = next(rows)
        print(f"\n### {title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)
    took = time.monotonic() - begun
    print(f"\n{options.samples} intervals a figure, seed {options.seed}, {took:.0f} s")


if __name__ == "__main__":
    main()
