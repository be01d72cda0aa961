#!/bin/sh
# Inside an image build: install the hashed locks named, each for the base's Python. Usage: install.sh LOCK...
#   install.sh cuda13          locks/cuda13-py312.txt where python3 is 3.12
#   install.sh cpu-torch cpu
# Optional build inputs: secret `ca` (CA bundle), secret `index` (one line, the URL of a package index; a secret
# because it may hold a password), folder wheelhouse/ of the build context, and OFFLINE=1 (wheelhouse only).
set -eu
root=/opt/kit
tag=$(python3 -c 'import sys; print("py%d%d" % sys.version_info[:2])')
case $tag in py311 | py312) ;; *) echo "The base image has Python $tag; the locks are for 3.11 and 3.12." >&2; exit 2 ;; esac

if [ -s /run/secrets/ca ]; then export SSL_CERT_FILE=/run/secrets/ca PIP_CERT=/run/secrets/ca; fi
if [ -s /run/secrets/index ]; then
  UV_DEFAULT_INDEX=$(head -n 1 /run/secrets/index)
  export UV_DEFAULT_INDEX PIP_INDEX_URL="$UV_DEFAULT_INDEX"
fi
export PIP_FIND_LINKS=/wheelhouse UV_FIND_LINKS=/wheelhouse PIP_DISABLE_PIP_VERSION_CHECK=1 UV_LINK_MODE=copy
offline=
if [ "${OFFLINE:-0}" = 1 ]; then export PIP_NO_INDEX=1; offline=--no-index; fi

[ -x "$root/venv/bin/python" ] || python3 -m venv "$root/venv"
# uv checks what pip checks and is several times as fast; its own wheel is in a hashed lock like the rest.
python3 -m venv /tmp/installer
/tmp/installer/bin/pip install -q --require-hashes -r locks/bootstrap.txt

install() { # LOCK [FLAG...]
  lock=locks/$1-$tag.txt; shift
  /tmp/installer/bin/uv pip install --quiet --python "$root/venv/bin/python" --require-hashes --no-deps --no-build \
    --compile-bytecode $offline "$@" -r "$lock"
}
for name in "$@"; do
  if [ "$name" = cpu-torch ]; then
    # The public index holds no CPU build of torch: from the wheelhouse, or from the index that uv knows for it.
    install cpu-torch || UV_HTTP_RETRIES=0 install cpu-torch --torch-backend cpu || {
      echo "No CPU build of torch within reach. Put its wheel (locks/cpu-torch-$tag.txt) into wheelhouse/." >&2
      exit 2
    }
  else
    install "$name"
  fi
done
rm -rf /tmp/installer
