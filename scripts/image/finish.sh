#!/bin/sh
# Inside an image build, after the packages: the kit itself, the patches, a user, and image.json. Usage: finish.sh FLAVOUR
set -eu
root=/opt/kit
python=$root/venv/bin/python
cd "$root/src"

# What the labels claim must be what is in the image.
actual=$(cat "locks/$1"-py3*.txt | sha256sum | cut -c1-64)
if [ -n "${LOCK_SHA256:-}" ] && [ "$LOCK_SHA256" != "$actual" ]; then
  echo "LOCK_SHA256 is $LOCK_SHA256, but the locks have $actual: run \`kit compose render\`." >&2
  exit 2
fi
# Editable: scenarios, golden files and patches are found beside the package. Nothing is fetched: setuptools is in the lock.
"$root/venv/bin/pip" install -q --no-index --no-deps --no-build-isolation -e .

"$root/venv/bin/kit" patches apply
"$root/venv/bin/kit" patches verify
site=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$python" -m compileall -q "$site/sglang/srt" kit

# The key of the JIT caches: kernels compiled by other packages, other patches or another base must not be used.
key=$(cat "locks/$1"-py3*.txt patches/*.patch /etc/os-release 2>/dev/null | sha256sum | cut -c1-16)
"$python" - "$1" "$key" "$actual" <<'PYTHON' >"$root/image.json"
import json, os, sys
from kit import fingerprint, patches
flavour, key, lock = sys.argv[1:]
here = fingerprint.collect()
print(json.dumps({
    "flavour": flavour, "cache_key": key, "lock_sha256": lock, "git_commit": os.environ.get("GIT_COMMIT") or None,
    "python": here.python, "os": here.os, "packages": here.packages,
    "patches": [patch.id for patch in patches.live() if patch.live],
}, indent=1))
PYTHON
cat "$root/image.json"

id kit >/dev/null 2>&1 || useradd --uid "${KIT_UID:-10001}" --user-group --home-dir /home/kit --create-home --shell /usr/sbin/nologin kit
# A named volume takes over owner and mode; sticky and open, so that --user works too.
mkdir -p /cache /pairs /runs
chown kit:kit /cache /pairs /runs
chmod 1777 /cache /pairs /runs
