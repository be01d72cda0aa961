"""Telemetry in the report: read as it was written, thinned, and left out with a sentence."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.golden import Golden
from kit.records import RunData
from kit.report.html.page import render
from kit.report.html.telemetry import MISSING, POINTS, read_telemetry, thin
from kit.telemetry.records import GpuSample, TelemetryHeader, TelemetrySample
from kit.verdict import Verdict


def write(path: Path, run: RunData, seconds: int = 400, gpus: int = 2, tail: str = "") -> Path:
    start = run.launches[0].t
    lines = [
        TelemetryHeader(
            t=start,
            interval_s=1,
            cpus=2,
            gpus=["<b>H200"] * gpus,
            unavailable={"cpu_energy_uj": "no <RAPL> here"},
        ).model_dump_json()
    ]
    for i in range(seconds):
        lines.append(
            TelemetrySample(
                t=start + i,
                cpu=0.5,
                cpu_ours=0.25 if i else None,
                server_rss_mib=2048,
                gpus=[GpuSample(index=g, power_w=300 + 100 * g + i % 3) for g in range(gpus)],
            ).model_dump_json()
        )
    path.write_text("\n".join(lines) + "\n" + tail)
    return path


def test_units_are_those_of_the_axis(tmp_path: Path, run: RunData) -> None:
    telemetry = read_telemetry(write(tmp_path / "t.jsonl", run))
    assert telemetry is not None
    found = {s.name: s for s in telemetry.series}
    assert set(found) == {"processors", "server memory", "GPU power"}
    assert found["processors"].lines["all"][5] == pytest.approx(50)
    assert found["processors"].lines["kit and server"][5] == pytest.approx(25)
    assert found["server memory"].lines["server"][0] == pytest.approx(2)
    assert list(found["GPU power"].lines) == ["GPU 0", "GPU 1"]
    assert telemetry.seconds[:2] == [0, 1]


def test_a_killed_run_leaves_half_a_line(tmp_path: Path, run: RunData) -> None:
    half = read_telemetry(write(tmp_path / "t.jsonl", run, 5, tail='{"kind": "sam'))
    assert half is not None
    assert len(half.seconds) == 5


@pytest.mark.parametrize("content", [None, "", "not json\n", json.dumps({"kind": "header"}) + "\n"])
def test_without_samples_the_report_says_so(
    content: str | None, tmp_path: Path, run: RunData, verdict: Verdict, golden: Golden
) -> None:
    if content is not None:
        (tmp_path / "telemetry.jsonl").write_text(content)
    html = render(run, verdict, golden, tmp_path)
    assert MISSING in html
    assert 'id="telemetry"' not in html


def test_the_chart_has_every_quantity(
    tmp_path: Path, run: RunData, verdict: Verdict, golden: Golden
) -> None:
    write(tmp_path / "telemetry.jsonl", run, 4000)
    html = render(run, verdict, golden, tmp_path)
    figure = re.search(r'id="telemetry">.*?</figure>', html, re.S)
    assert figure is not None
    for said in ("processors, % busy", "GPU power, W", "time, min", "<td>GPU 1</td>"):
        assert said in figure[0]
    assert "no &lt;RAPL&gt; here" in html
    assert MISSING not in html
    assert len(html) < 1_500_000


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=2000))
def test_thinning_keeps_the_mean_and_bounds_the_points(values: list[float]) -> None:
    x, y = thin([float(i) for i in range(len(values))], values)
    assert len(x) == len(y) <= POINTS
    assert min(values) - 1e-6 <= min(y) <= max(y) <= max(values) + 1e-6
    if len(values) % POINTS == 0 or len(values) <= POINTS:
        assert math.fsum(y) / len(y) == pytest.approx(math.fsum(values) / len(values), abs=1e-6)


def test_thinning_leaves_gaps_where_nothing_was_seen() -> None:
    x, y = thin([0.0, 1.0], [math.nan, 2.0])
    assert x == [0.0, 1.0]
    assert math.isnan(y[0])
    assert y[1] == 2.0


def test_many_gpus_are_drawn_as_a_range_and_listed_each(
    tmp_path: Path, run: RunData, verdict: Verdict, golden: Golden
) -> None:
    write(tmp_path / "telemetry.jsonl", run, 60, gpus=8)
    html = render(run, verdict, golden, tmp_path)
    figure = re.search(r'id="telemetry">.*?</figure>', html, re.S)
    assert figure is not None
    assert figure[0].count("mean of 8</text>") == 2
    assert all(f"<td>GPU {i}</td>" in figure[0] for i in range(8))
