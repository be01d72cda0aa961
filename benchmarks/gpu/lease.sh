#!/usr/bin/env bash
# All that the kit says about one GPU, in one lease of half an hour. Give PYTHONPATH (SGLang's packages and the kit),
# KIT_PAIRS and KIT_RUNS; docker must answer by the time the containers are measured, else they are left out.
#
#   benchmarks/gpu/lease.sh OUT SECONDS [IMAGE]      IMAGE: an empty image that the host's userland is mounted into
set -uo pipefail
out=$(realpath -m "$1") total=$2 image=${3:-local/empty:latest}
here=$(dirname "$(realpath "$0")")
mkdir -p "$out"
begun=$SECONDS
say() { echo "[$((SECONDS - begun)) s] $*"; }
left() { echo $((total - (SECONDS - begun) - ${1:-0})); }
used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; }
export OMP_NUM_THREADS=8 HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
export TRITON_CACHE_DIR=/tmp/jit/triton FLASHINFER_WORKSPACE_BASE=/tmp/jit TORCHINDUCTOR_CACHE_DIR=/tmp/jit/inductor
mkdir -p /tmp/jit

say "pairs"
python3 "$here/session.py" pair --out "$out/pair"
KIT_PAIRS=$KIT_PAIRS-16 python3 "$here/session.py" pair --layers 16 --out "$out/pair" >/dev/null 2>&1 &

core=(--kv-tokens 70000 --sweeps 1)
say "launch A"
cross="python3 $here/../client/cross_check.py --url URL --streams 30 --requests 120 --tokens 200 --rounds ${ROUNDS:-10} --seconds 70 --out $out/cross_check.json"
timeout "$(left 1000)" python3 "$here/session.py" variants --out "$out/a" --scenarios baseline,spec-v2,spec-v2-threshold,spec-v1 \
  "${core[@]}" --aim baseline,spec-v2,spec-v2-threshold --aim-seconds 120 --seconds 480 --then "timeout 90 $cross" --then-for spec-v2
wait

say "launch B"
timeout "$(left 650)" python3 "$here/session.py" variants --out "$out/b" --scenarios spec-v1,spec-v2,baseline \
  "${core[@]}" --more spec-v1-fixed,spec-v1-topk1 --published 30,100 --seconds 420 --linger &
session=$!
while kill -0 $session 2>/dev/null && [ ! -e "$out/b/measured" ]; do sleep 0.5; done
if [ -e "$out/b/measured" ]; then
  say "killing the tool with $(used) MiB in use on the GPU"
  pkill -KILL -f "session.py variants --out $out/b"
  for i in $(seq 20); do sleep 1; [ "$(used)" -lt 2000 ] && break; done
  say "after $i s $(used) MiB; processes on the GPU: $(nvidia-smi --query-compute-apps=pid --format=csv,noheader | wc -l)"
fi
wait

say "launch B2"
timeout "$(left 400)" python3 "$here/session.py" variants --out "$out/b2" --scenarios spec-v2,baseline,spec-v1 "${core[@]}" --seconds 240

say "golden"
python3 -m kit golden record "$out"/{a,b,b2}/runs-variants/*-h200 --note "one H200, three launches, servers of a launch side by side" --out "$out/h200.yaml"

say "independent"
timeout "$(left 200)" python3 -m kit reproduce --rig h200 --backend process --no-doctor --launches 1 --sweeps 1 --levels 1,10,30,100 \
  --golden "$out/h200.yaml" --out "$out/c"
say "exit code $?"

say "containers"
chmod -R a+rwX /tmp/jit "$KIT_PAIRS-16"
if docker info >/dev/null 2>&1; then
  timeout "$(left 5)" env KIT_PAIRS="$KIT_PAIRS-16" python3 "$here/session.py" containers --out "$out/d" --layers 16 --kv-tokens 36000 --levels 1,10,30,100 \
    --sweeps 5 --seconds "$(left 20)" --userland "$image" --network host
fi
say "doctor"
[ "$(left)" -gt 60 ] && timeout "$(left 5)" python3 "$here/doctor_fixture.py" --rig h200 --out "$out/doctor"
say "done"
touch "$out/done"
