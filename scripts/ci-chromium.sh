#!/usr/bin/env bash
# Chromium for the tests of the HTML report (marker `browser`): installed by apt where this is root on Debian or
# Ubuntu and it is missing. Elsewhere those tests are left out, and this says so. Never fails a build.
set -uo pipefail

if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then
  echo "Chromium is here: the report's browser tests run."
  exit 0
fi
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "No Chromium, and no right to install it: the report's browser tests are left out."
  exit 0
fi
# Ubuntu's package of that name only fetches a snap, which a container cannot run.
if grep -qi '^ID=ubuntu' /etc/os-release 2>/dev/null; then
  echo "Ubuntu packs Chromium as a snap only: the report's browser tests are left out unless google-chrome is installed."
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
if timeout 300 sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core' \
  >/tmp/ci-chromium.log 2>&1; then
  echo "Chromium was installed: the report's browser tests run."
else
  tail -3 /tmp/ci-chromium.log
  echo "Chromium could not be installed: the report's browser tests are left out."
fi
