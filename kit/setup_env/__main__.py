"""Command line of the set-up: ``python3 -m kit.setup_env [setup | lock]``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

SUPPORTED = ((3, 11), (3, 12))
REMEDY = (
    "Install one (Debian 12: apt-get install python3), "
    "or name one with `make PYTHON=/path/to/python3.11`."
)


def other_python() -> str | None:
    """Return a supported interpreter on PATH that really starts (a pyenv shim may not), or None."""
    for major, minor in SUPPORTED:
        path = shutil.which(f"python{major}.{minor}")
        if path is None:
            continue
        code = f"import sys; sys.exit(sys.version_info[:2] != ({major}, {minor}))"
        done = subprocess.run([path, "-c", code], stderr=subprocess.DEVNULL, check=False)
        if done.returncode == 0:
            return path
    return None


def main() -> int:
    """Run the set-up under a supported Python, changing over to one first where needed."""
    if sys.version_info[:2] not in SUPPORTED:
        found = other_python()
        if found is None:
            have = ".".join(str(part) for part in sys.version_info[:3])
            error = f"Set-up needs Python 3.11 or 3.12, and this is {have}.\n{REMEDY}"
            print(error, file=sys.stderr)
            return 2
        os.execv(found, [found, "-m", "kit.setup_env", *sys.argv[1:]])
    # Imported only now: an older Python could not even read these.
    from kit.setup_env import cli

    return cli.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
