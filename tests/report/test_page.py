"""The HTML report: what is on it, that it needs nothing else, and that data never become markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kit.golden import Golden
from kit.records import FailureRecord, RunData
from kit.report.html.axes import concurrency_axis
from kit.report.html.page import render
from kit.report.html.svg import NARROW, VARIABLES, WIDE, drawing, panels
from kit.report.words import cause_sentences, machine_rows
from kit.runfolder import read_run
from kit.verdict import Verdict, judge
from tests.factory import level_record, manifest, plan, run_data
from tests.test_verdict import golden_of, run_of, with_gpu

EVIL = "<img src=x onerror=alert(1)>\"'&</style></title><script>alert(2)</script> $\\frac$"
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Elements with their attributes, and the text of each element that has an id or is a table cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.elements if name == tag]


@pytest.fixture(scope="module")
def html(run: RunData, verdict: Verdict, golden: Golden, tmp_path_factory: Any) -> str:
    return render(run, verdict, golden, tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_every_element_is_closed_and_ids_are_unique(page: Page) -> None:
    assert page.open == []
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    used = {
        name
        for _, attrs in page.elements
        for key in ("aria-labelledby", "href", "xlink:href", "clip-path")
        for name in re.findall(r"#([\w-]+)", attrs.get(key) or "")
    }
    used |= {n for _, a in page.elements for n in (a.get("aria-labelledby") or "").split()}
    assert used <= set(ids)


def test_nothing_is_fetched_and_nothing_runs(html: str, page: Page) -> None:
    assert page.all("script") == page.all("iframe") == page.all("img") == []
    assert page.all("link") == [{"rel": "icon", "href": "data:,"}]
    assert "@import" not in html
    assert set(re.findall(r"url\((.)", html)) <= {"#"}
    policy = next(a for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in (policy["content"] or "")
    # The names of SVG's namespaces look like addresses and are none.
    addresses = set(re.findall(r"https?://[^\"'<\s]+", html))
    assert {a for a in addresses if not a.startswith("http://www.w3.org/")} == set()


def test_it_stays_small(html: str) -> None:
    assert 50_000 < len(html.encode()) < 2_000_000


def test_the_verdict_its_claims_and_its_findings_are_said(page: Page, verdict: Verdict) -> None:
    text = " ".join(" ".join(page.text).split())
    assert verdict.status in text
    assert verdict.headline in text
    assert len(verdict.claims) == 3
    for claim in verdict.claims:
        assert claim.text in text
        assert claim.ratio is not None
        assert claim.ratio.text(2) in text
    assert verdict.findings
    for finding in verdict.findings:
        assert finding.seen in text
        assert finding.remedy in text
    for said in ("0.5.12.post1", "AMD EPYC", "patches live, spec-v2", "kit reproduce"):
        assert said in text
    assert "no telemetry.jsonl" in text


def test_every_level_is_in_the_tables(page: Page, verdict: Verdict) -> None:
    for level in verdict.levels:
        assert level.ratio is not None
        for figure in (
            f"{level.tok_s.value:.1f} [{level.tok_s.low:.1f}, {level.tok_s.high:.1f}]",
            level.ratio.text(3),
            f"{level.effective_concurrency:.2f}",
            f"{(level.step_time_s or 0) * 1e3:.2f}",
        ):
            assert figure in page.cells
        if level.accept_length is not None:
            assert f"{level.accept_length:.3f}" in page.cells


def test_every_chart_has_a_name_a_description_and_a_table(html: str) -> None:
    figures = re.findall(r'<figure class="chart" id="([\w-]+)">(.*?)</figure>', html, re.S)
    assert [name for name, _ in figures] == [
        "claims",
        "throughput",
        "ratio",
        "acceptance",
        "factors",
        "latency",
        "spread",
    ]
    for name, text in figures:
        assert text.count("<svg ") == 2, name
        assert text.count('role="img"') == 2
        assert (
            len(re.findall(r"<title [^>]+>[^<]{5,}</title><desc [^>]+>[^<]{20,}</desc>", text)) == 2
        )
        assert text.count("<tr>") >= 3


def test_charts_take_every_colour_from_the_style_sheet(html: str) -> None:
    figures = "".join(re.findall(r"<svg .*?</svg>", html, re.S))
    assert re.findall(r"#[0-9a-f]{6}\b", figures) == []
    assert set(re.findall(r"var\(--\w+\)", figures)) <= set(VARIABLES.values())
    for variable in set(VARIABLES.values()):
        assert html.count(f"{variable[4:-1]}:") >= 3, "light, dark and print"


def test_marks_stand_where_the_figures_are(html: str, verdict: Verdict) -> None:
    """Read the ratio of two throughputs back from the drawing."""
    svg = re.search(r'id="throughput">.*?<svg (.*?)</svg>', html, re.S)
    assert svg is not None
    v2 = [v for v in verdict.levels if v.scenario == "spec-v2"]
    found = re.findall(r'x="([\d.]+)" y="([\d.]+)" style="fill: var\(--s2\)', svg[1])
    # The band's origin and the legend's mark are not figures.
    uses = [u for u in found if 30 < float(u[1]) < 399]
    assert len(uses) == len(v2) == 3
    y = [float(u[1]) for u in uses]
    values = [v.tok_s.value for v in v2]
    assert (y[0] - y[1]) / (y[0] - y[2]) == pytest.approx(
        (values[1] - values[0]) / (values[2] - values[0]), abs=0.01
    )


def evil_run(run: RunData) -> RunData:
    """The run with markup in everything that comes from outside: names, commands, log lines."""
    m = run.manifest
    bad = m.model_copy(
        update={
            "rig": {**m.rig, "title": EVIL},
            "pair": {"kind": "paths", "target": EVIL, "draft": "$x$ " + EVIL},
            "command": ["kit", "reproduce", EVIL],
            "caveat": EVIL,
            "backend_reason": EVIL,
            "fingerprint": {**m.fingerprint, "cpu_model": EVIL},
            "plan": m.plan.model_copy(update={"scenarios": [*m.plan.scenarios, EVIL]}),
        }
    )
    extra = [r.model_copy(update={"scenario": EVIL}) for r in run.levels if r.scenario == "spec-v2"]
    launch = run.launches[0]
    proof = launch.proof.model_copy(update={"problems": [EVIL], "patches_live": [EVIL]})
    failure = FailureRecord(
        t=1, scenario=EVIL, launch=0, level=4, sentence=EVIL, remedy=EVIL, log_tail="line\n" + EVIL
    )
    return run.model_copy(
        update={
            "manifest": bad,
            "levels": [*run.levels, *extra],
            "launches": [launch.model_copy(update={"proof": proof, "scenario": EVIL})],
            "failures": [failure],
        }
    )


def test_data_never_become_markup(run: RunData, golden: Golden, tmp_path: Path) -> None:
    bad = evil_run(run)
    claim = golden.claims[0].model_copy(update={"text": EVIL})
    golden = golden.model_copy(update={"claims": [claim]})
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "<b>.log").touch()
    html = render(bad, judge(bad, golden), golden, tmp_path)
    page = Page(html)
    assert page.open == []
    assert page.all("script") == page.all("img") == page.all("b") == []
    assert not any(k.startswith("on") for _, attrs in page.elements for k in attrs)
    assert "".join(page.text).count("alert(2)") > 10
    assert page.all("a")[-1]["href"] == "logs/%3Cb%3E.log"


def test_under_the_published_protocol_levels_above_30_are_marked_as_replicates(
    tmp_path: Path,
) -> None:
    levels = [1, 2, 5, 10, 30, 70, 100, 250]
    p = plan(protocol="published", levels=levels, requests=dict.fromkeys(levels, 30))
    records = [
        level_record(level=c, launch=n, sweep=s, tok_s=90.0 * min(c, 30) ** 0.6 + n + s)
        for c in levels
        for n in range(2)
        for s in range(2)
    ]
    run = run_data(records, manifest=manifest(plan=p))
    html = render(run, judge(run, None), None, tmp_path)
    assert "do not count again" in html
    assert [c for c in Page(html).cells if "replicate)" in c] == [
        "70 (replicate)",
        "100 (replicate)",
        "250 (replicate)",
    ]
    figure = re.search(r'id="throughput">.*?</figure>', html, re.S)
    assert figure is not None
    assert figure[0].count("replicates</text>") == 2
    for unnamed in ("Ratio to golden", "Accept length"):
        assert unnamed not in html


def test_a_run_that_measured_nothing_has_a_report_too(tmp_path: Path) -> None:
    run = run_data([], requests=[])
    html = render(run, judge(run, None), None, tmp_path)
    assert "nothing to draw" in html
    assert Page(html).open == []


def test_two_drawings_of_a_run_are_the_same_file(folder: Path, golden: Golden, html: str) -> None:
    run = read_run(folder)
    empty = folder / "nothing"
    empty.mkdir()
    assert render(run, judge(run, golden), golden, empty) == html


def test_a_slower_run_shows_its_cause(tmp_path: Path) -> None:
    run = with_gpu(run_of(step=1.3))
    golden = golden_of()
    verdict = judge(run, golden)
    assert verdict.status == "SLOWER"
    assert verdict.causes
    page = Page(render(run, verdict, golden, tmp_path))
    text = " ".join(" ".join(page.text).split())
    assert all(sentence in text for sentence in cause_sentences(verdict))
    assert "step time" in cause_sentences(verdict)[0]
    assert f"The other {len(verdict.causes) - 3} levels that moved" in text
    at = page.cells.index("step time")
    change = next(f for f in verdict.causes[0].factors if f.factor == "step time")
    assert page.cells[at + 1 : at + 3] == [change.ratio.text(3), "moved"]


def test_where_nothing_is_comparable_no_level_is_called_unchanged() -> None:
    run = with_gpu(run_of(step=1.3))
    verdict = judge(run, golden_of(output_tokens=7))
    assert verdict.status == "NOT COMPARABLE"
    assert cause_sentences(verdict) == [
        "Levels are not judged against another machine's figures, so no change is explained."
    ]


def test_code_from_a_models_folder_is_said(run: RunData) -> None:
    server = {**run.manifest.rig["server"], "trust_remote_code": True}
    trusting = run.manifest.model_copy(update={"rig": {**run.manifest.rig, "server": server}})
    row = ("code in the model's folder", "trusted: the server ran it")
    assert row in machine_rows(trusting)
    assert row not in machine_rows(run.manifest)


@pytest.mark.parametrize(("width", "named"), [(WIDE, 8), (NARROW, 7)])
def test_levels_are_named_where_there_is_room(width: int, named: int) -> None:
    with drawing():
        _, (ax,) = panels(width, 1, 300)
        concurrency_axis(ax, [1, 2, 5, 10, 30, 70, 100, 250])
        names = [label.get_text() for label in ax.get_xticklabels()]
    assert len(names) == named
    assert {"1", "30", "250"} <= set(names)
