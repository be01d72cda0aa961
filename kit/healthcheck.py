"""Is the server able to decode? ``python -m kit.healthcheck [URL]``: exit code 0 if two tokens came back, else 1.

The images use it as their health check. It loads nothing but the standard library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kit.backends.base import decodes

DEFAULT_URL = "http://127.0.0.1:30000"
# Below the time-out of the images' HEALTHCHECK, so that the reason is printed and not cut off.
TIMEOUT_S = 50


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code; ``KIT_HEALTH_URL`` names the server where no argument does."""
    given = list(sys.argv[1:] if argv is None else argv)
    url = given[0] if given else os.environ.get("KIT_HEALTH_URL", DEFAULT_URL)
    if decodes(url.rstrip("/"), TIMEOUT_S):
        print(f"{url} decodes")
        return 0
    print(f"{url} does not decode (yet)")
    return 1


if __name__ == "__main__":
    sys.exit(main())
