#!/bin/sh
# Inside an image build: install Debian or Ubuntu packages. Usage: apt.sh PACKAGE...
# An archive behind a company's TLS proxy needs the CA bundle given as the build secret `ca`.
set -eu
export DEBIAN_FRONTEND=noninteractive
ca=/run/secrets/ca
set -- "$@" --
packages=
while [ "$1" != -- ]; do packages="$packages $1"; shift; done
shift
[ -s "$ca" ] && set -- -o "Acquire::https::CAInfo=$ca" -o APT::Sandbox::User=root
apt-get "$@" update -qq
# shellcheck disable=SC2086 # package names hold no spaces
apt-get "$@" install -yqq --no-install-recommends $packages >/dev/null
