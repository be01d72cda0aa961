#!/usr/bin/env bash
# A small Debian 12 base image made on this host with debootstrap, for hosts that reach a Debian mirror but no image
# registry. Root only. A second call does nothing where the image is there already.
#
#   scripts/debian-base.sh [NAME]          default NAME: kit-debian:12
#
# The image knows the mirror that it was made from, so it is for builds on this host and not for publication.
set -euo pipefail

name=${1:-kit-debian:12}
die() { echo "debian-base: $1" >&2; exit 2; }

docker info >/dev/null 2>&1 || die "no Docker Engine answers; start one with scripts/docker-on-debian.sh."
if docker image inspect "$name" >/dev/null 2>&1; then
  echo "$name is there already"
  exit
fi
[ "$(id -u)" = 0 ] || die "must run as root."
command -v debootstrap >/dev/null || {
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends debootstrap >/dev/null
}
mirror=${MIRROR:-$(awk '$1 == "URIs:" { print $2; exit }' /etc/apt/sources.list.d/*.sources 2>/dev/null || true)}
mirror=${mirror:-http://deb.debian.org/debian}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debootstrap --variant=minbase --include=ca-certificates bookworm "$work/root" "$mirror" >"$work/log" 2>&1 ||
  { tail -n 20 "$work/log" >&2; die "debootstrap failed; the end of its log is above."; }
# What an image does not need: the package cache, documentation and logs.
rm -rf "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/* "$work"/root/usr/share/{doc,man,locale}/* \
  "$work"/root/var/log/*
tar -C "$work/root" --numeric-owner -c . | docker import --change 'CMD ["bash"]' - "$name" >/dev/null
docker image inspect --format "$name {{.Size}} bytes {{.Id}}" "$name"
