"""Record patches/checksums.json from a pristine SGLang: python scripts/patches/record.py SITE-PACKAGES

For whoever changes the series. SITE-PACKAGES must hold SGLang as released, or reverted (`kit patches revert`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kit.patches.series import CHECKSUMS, compute_checksums, patches_dir

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = patches_dir() / CHECKSUMS
    text = json.dumps(compute_checksums(Path(sys.argv[1])), indent=1)
    out.write_text(text + "\n", "utf-8")
    print(out)
