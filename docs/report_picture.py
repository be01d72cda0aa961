"""Draw docs/report.png: the top of a run's report.html as a browser shows it (needs Chromium and Pillow).

python docs/report_picture.py runs/RUN
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

page_file = (Path(sys.argv[1]) / "report.html").resolve()
program = shutil.which("chromium") or shutil.which("google-chrome")
with sync_playwright() as driver:
    browser = driver.chromium.launch(executable_path=program)
    page = browser.new_page(viewport={"width": 1100, "height": 1000}, color_scheme="light")
    page.goto(page_file.as_uri())
    bottom = page.evaluate(
        "document.querySelector('#throughput svg').getBoundingClientRect().bottom + 30"
    )
    shot = page.screenshot(
        full_page=True, clip={"x": 0, "y": 0, "width": 1100, "height": round(bottom)}
    )
    browser.close()
# 64 colours are enough for a drawing, and a page of the repository stays small.
picture = Image.open(io.BytesIO(shot)).convert("RGB").quantize(64, dither=Image.Dither.NONE)
picture.save(Path(__file__).with_name("report.png"), optimize=True)
