"""The report in a real browser: silent, offline, accessible in light and dark, and as wide as the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kit.golden import Golden
from kit.report.html.page import render
from kit.report.write import write_comparison, write_reports
from kit.runfolder import read_run
from kit.verdict import judge
from tests.report.test_page import evil_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, golden: Golden, run: Any) -> dict[str, Path]:
    """A report, one of planted markup, and a comparison."""
    import shutil

    parent = tmp_path_factory.mktemp("runs")
    source = Path(__file__).parent / "run"
    folder = Path(shutil.copytree(source, parent / "a"))
    written = write_reports(folder, run, judge(run, golden), golden)
    assert written.html is not None, written.problem
    bad = evil_run(run)
    evil = folder / "evil.html"
    evil.write_text(render(bad, judge(bad, golden), golden, folder), encoding="utf-8")
    compared = write_comparison(folder, Path(shutil.copytree(source, parent / "b")))
    assert read_run(folder).levels
    return {"report": written.html, "evil": evil, "compare": compared}


@pytest.mark.parametrize("width", [1200, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["report", "evil", "compare"])
def test_a_page_is_silent_offline_accessible_and_fits(
    browser: Any, pages: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    url = pages[name].as_uri()
    page.goto(url)
    assert asked == [url]
    assert said == []
    # Open tables are part of the page too.
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    page.close()


def test_dark_and_light_differ_and_ink_stands_out(browser: Any, pages: dict[str, Path]) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        page.goto(pages["report"].as_uri())
        shades[scheme] = page.evaluate(
            """() => ['body', '.wide svg text'].map((selector, i) => {
                 const style = getComputedStyle(document.querySelector(selector));
                 const colour = i ? style.fill : style.backgroundColor;
                 return colour.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) / 3;
               })"""
        )
        page.close()
    paper, ink = shades["light"]
    night, chalk = shades["dark"]
    assert paper > 200 > 60 > ink
    assert night < 60 < 200 < chalk


def test_no_text_of_a_chart_lies_on_another(browser: Any, pages: dict[str, Path]) -> None:
    for width in (1200, 360):
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto(pages["report"].as_uri())
        clashes = page.evaluate(
            """() => [...document.querySelectorAll('.chart svg')].flatMap(svg => {
                 const texts = [...svg.querySelectorAll('text')]
                   .map(t => [t.textContent, t.getBoundingClientRect()]).filter(t => t[1].width > 0);
                 const out = [], box = svg.getBoundingClientRect();
                 for (const [i, [a, p]] of texts.entries()) {
                   if (p.left < box.left - 1 || p.right > box.right + 1) out.push('cut: ' + a);
                   for (const [b, q] of texts.slice(i + 1))
                     if (Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 &&
                         Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 3)
                       out.push(a + ' / ' + b);
                 }
                 return out;
               })"""
        )
        assert clashes == []
        page.close()


def test_on_paper_the_wide_drawings_are_used(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page(color_scheme="dark")
    page.goto(pages["report"].as_uri())
    page.emulate_media(media="print")
    shown = page.evaluate(
        "['.wide', '.narrow', 'nav'].map(s => getComputedStyle(document.querySelector(s)).display)"
    )
    assert shown == ["block", "none", "none"]
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(255, 255, 255)"
    assert len(page.pdf(format="A4")) > 20_000
    page.close()
