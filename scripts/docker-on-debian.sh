#!/usr/bin/env bash
# A Docker Engine with Compose v2 and Buildx on a Debian 12 host that has neither, for CI machines and containers
# without systemd. Root only. A second call finds everything there and does nothing.
#
#   scripts/docker-on-debian.sh            install what is missing, start the engine, print the versions
#   scripts/docker-on-debian.sh stop       stop the engine that a call without arguments brought up; packages stay
#   scripts/docker-on-debian.sh second DIR a further engine with socket, data and state in DIR (for tests that stop it);
#                                          prints its DOCKER_HOST. Its bridge is private and leads nowhere.
#
# Debian 12 carries the engine but not the Compose v2 plug-in; Debian 13 does, in packages of one static binary each.
# These are unpacked, not installed, so that the host's package database stays that of one release.
set -euo pipefail

PLUGINS=/usr/local/lib/docker/cli-plugins
STATE=/var/lib/kit-docker

die() { echo "docker-on-debian: $1" >&2; exit 2; }

[ "$(id -u)" = 0 ] || die "must run as root."
. /etc/os-release
[ "${ID:-}" = debian ] || die "this is ${PRETTY_NAME:-not Debian}; see https://docs.docker.com/engine/install/."

wait_for() { # SOCKET LOG
  for _ in $(seq 120); do
    docker --host "unix://$1" info >/dev/null 2>&1 && return
    sleep 0.5
  done
  tail -n 20 "$2" >&2
  die "the engine did not start within 60 s; the end of $2 is above."
}

second() { # DIR
  mkdir -p "$1"
  local dir socket bridge
  dir=$(realpath "$1") socket=$dir/docker.sock bridge=kit-br$((RANDOM % 1000))
  # Not --bridge none: that would remove docker0, which belongs to the first engine.
  ip link add "$bridge" type bridge && ip addr add 10.213.77.1/28 dev "$bridge" && ip link set "$bridge" up
  echo "$bridge" >"$dir/bridge"
  setsid dockerd --host "unix://$socket" --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" \
    --bridge "$bridge" --iptables=false --ip-masq=false >"$dir/log" 2>&1 </dev/null &
  wait_for "$socket" "$dir/log"
  echo "unix://$socket"
}

engine() {
  command -v dockerd >/dev/null && command -v iptables >/dev/null && command -v ip >/dev/null && return
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends docker.io iptables iproute2 >/dev/null
  # Where systemd runs, the installation has started the service itself.
  mkdir -p "$STATE"
  [ ! -d /run/systemd/system ] || touch "$STATE/service"
}

mirror() { # the archive that this host already uses
  awk '$1 == "URIs:" { print $2; exit }' /etc/apt/sources.list.d/*.sources 2>/dev/null |
    grep . || awk '$1 == "deb" { for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) { print $i; exit } }' /etc/apt/sources.list
}

plugins() {
  docker compose version >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1 && return
  mkdir -p "$PLUGINS" "$STATE/lists/partial"
  local work; work=$(mktemp -d)
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror) trixie main" >"$work/trixie.list"
  local apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/trixie.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$STATE/lists" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  (cd "$work" && "${apt[@]}" download docker-compose docker-buildx && for deb in ./*.deb; do dpkg-deb -x "$deb" tree; done)
  find "$work/tree" -path '*/cli-plugins/*' -type f -exec install -m 755 -t "$PLUGINS" {} +
  rm -rf "$work"
}

stop() {
  local pid
  if [ -e "$STATE/service" ]; then
    rm -f "$STATE/service"
    systemctl stop docker.socket docker.service
    return
  fi
  pid=$(cat "$STATE/pid" 2>/dev/null) || return 0
  rm -f "$STATE/pid"
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ] || return 0
  kill "$pid"
  for _ in $(seq 60); do
    [ -e "/proc/$pid" ] || break
    sleep 0.5
  done
  [ ! -e "/proc/$pid" ] || kill -KILL "$pid"
  ip link delete docker0 2>/dev/null || true
}

case "${1:-}" in
  stop) [ $# = 1 ] || die "usage: $0 stop"; stop; exit ;;
  second) [ $# = 2 ] || die "usage: $0 second DIR"; second "$2"; exit ;;
  '') ;;
  *) die "usage: $0 [stop | second DIR]" ;;
esac
engine
plugins
if ! docker info >/dev/null 2>&1; then
  mkdir -p "$STATE"
  setsid dockerd >/var/log/dockerd.log 2>&1 </dev/null &
  echo $! >"$STATE/pid"
  wait_for /var/run/docker.sock /var/log/dockerd.log
fi
docker info --format 'engine {{.ServerVersion}}, storage {{.Driver}}'
echo "compose $(docker compose version --short), buildx $(docker buildx version | cut -d' ' -f2)"
