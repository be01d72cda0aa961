"""List the licence of every package that the locks pin, as docs/licences.md.

    python scripts/licences.py [PYTHON ...]

Reads the metadata of the packages installed beside each PYTHON (this one by default): what the authors declare, not
what their files hold. Packages of a lock that are installed nowhere are listed as such.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licences.md"
LOCKS = {"CPU": "cpu-py311.txt", "CUDA 13": "cuda13-py311.txt"}
COPYLEFT = re.compile(r"GPL|MPL|Mozilla|EUPL|CDDL|EPL", re.I)
OWNED = re.compile(r"NVIDIA|Proprietary|LicenseRef|Other/", re.I)
UNKNOWN = "not declared"
ABSENT = "not installed where this page was made"
READ = r"""
import importlib.metadata, json
found = {}
for d in importlib.metadata.distributions():
    m = d.metadata
    if not m["Name"]:
        continue
    classes = [c.split("::")[-1].strip() for c in m.get_all("Classifier", []) if c.startswith("License ::")]
    classes = [c for c in classes if c not in ("OSI Approved", "DFSG approved")]
    text = (m.get("License") or "").strip().splitlines()
    first = text[0].strip() if text and len(text[0]) < 80 else ""
    found[m["Name"]] = [m["Version"], m.get("License-Expression") or ", ".join(classes) or first]
print(json.dumps(found))
"""


def normal(name: str) -> str:
    """Return a package's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(lock: Path) -> dict[str, str]:
    """Return name and version of every package that a lock pins."""
    text = lock.read_text(encoding="utf-8")
    return {normal(n): v for n, v in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", text, re.M)}


def installed(python: str) -> dict[str, tuple[str, str]]:
    """Return version and declared licence of every package beside an interpreter."""
    done = subprocess.run([python, "-c", READ], capture_output=True, text=True, check=True)
    return {normal(n): (v, licence) for n, (v, licence) in json.loads(done.stdout).items()}


def page(known: dict[str, tuple[str, str]]) -> str:
    """Return the page."""
    locks = {kind: pinned(ROOT / "locks" / name) for kind, name in LOCKS.items()}
    rows, special = [], []
    for name in sorted({n for lock in locks.values() for n in lock}):
        versions = {kind: lock[name] for kind, lock in locks.items() if name in lock}
        licence = known.get(name, ("", ABSENT))[1] or UNKNOWN
        where = ", ".join(versions)
        shown = " / ".join(dict.fromkeys(versions.values()))
        rows.append(f"| {name} | {shown} | {where} | {licence.replace('|', '/')} |")
        if COPYLEFT.search(licence) or OWNED.search(licence) or licence == UNKNOWN:
            special.append(f"- {name}: {licence}")
    return "\n".join(
        [
            "# Licences of the packages that the locks pin",
            "",
            "Made by `scripts/licences.py` from what the packages declare in their metadata. The kit itself is under",
            "Apache-2.0 and contains none of them; `make setup` and `kit image build` install them.",
            "",
            f"{len(rows)} packages. To look at more closely (copyleft, a vendor's own terms, or nothing declared):",
            "",
            *special,
            "",
            "| package | version | lock | declared licence |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Write the page."""
    known: dict[str, tuple[str, str]] = {}
    for python in sys.argv[1:] or [sys.executable]:
        known = {**installed(python), **known}
    PAGE.write_text(page(known), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
