#!/bin/bash
# The kernels of this branch on a Hopper GPU: do they compile, are they equal to their twins, how fast are they and their variants?
#
#     bash benchmarks/variants/run.sh OUT [BEFORE]     # BEFORE: a folder with the src of the version before, for its rounds too
#
# From the root of the repository, with what sottovoce imports on PYTHONPATH. Each part is a process with a limit of its own, in the
# order of what must be known first; TOTAL seconds in all. Everything is in OUT/all.jsonl and OUT/log.txt.
OUT=$1; BEFORE=$2; PY=${PY:-python3}; START=$(date +%s); TOTAL=${TOTAL:-240}; WORK=$(mktemp -d)
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 XLA_PYTHON_CLIENT_PREALLOCATE=false JAX_COMPILATION_CACHE_DIR=$WORK/programs JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.3
part() {  # name, source folder, limit in seconds, command
  local name=$1 src=$2 limit=$3; shift 3
  local left=$((TOTAL - ($(date +%s) - START))); [ $left -lt 8 ] && { echo "no time for $name"; return 1; }
  [ $limit -gt $left ] && limit=$left
  PYTHONPATH=$src${PYTHONPATH:+:$PYTHONPATH} timeout -k 2 $limit "$PY" "$@" > "$WORK/out" 2>> "$OUT/log.txt"
  local rc=$?; sed "s/^{/{\"part\": \"$name\", /" "$WORK/out" | tee -a "$OUT/all.jsonl" | cut -c1-330
  echo "$name: status $rc after $(($(date +%s) - START)) s" | tee -a "$OUT/log.txt"; return $rc
}
variant() { "$PY" benchmarks/variants/patched.py "$1" > "$WORK/$1.cu"; }
rounds='import json, sys
from sottovoce.commands.bench import measure
for pair in sys.argv[1:]:
    cohort, block = map(int, pair.split("/"))
    found = measure("mcmahan-lstm", cohort, block)
    print(json.dumps({"cohort": cohort, "block": found.block, "ms": 1e3 * found.seconds_a_round, "users_per_second": found.users_per_second}), flush=True)'
compile='from pathlib import Path
from sottovoce.kernels import cuda
for kind in ("half", "float"):
    cuda._to_ptx(Path(cuda.__file__).with_name("lstm.cu").read_text(), kind)
print("{\"compiles\": true}")'
part compile src 30 -c "$compile" || exit 1
part kernels src 60 benchmarks/kernels.py --users 1024 100 || {
  for name in exchanged side_by_side; do variant $name; part $name src 40 benchmarks/kernels.py --users 1024 --source "$WORK/$name.cu"; done
  for kernel in head_a head_b recur_f recur_b sgd256 sgd96; do part "$kernel alone" src 15 benchmarks/kernels.py --users 100 --only $kernel; done
  exit 1
}
part rounds src 60 -c "$rounds" 2048/1024 100/0 5000/1000
part equal src 90 -m pytest -q -x -p no:cacheprovider tests/unit/kernels/test_cuda.py
[ -n "$BEFORE" ] && part before "$BEFORE" 45 -c "$rounds" 2048/1024 100/0
part gaps src 30 benchmarks/variants/gaps.py 100
for name in overlap one_product side_by_side; do variant $name; part $name src 20 benchmarks/kernels.py --users 1024 100 --only head_a --source "$WORK/$name.cu"; done
part "six parts" src 20 benchmarks/kernels.py --users 1024 100 --only head_a --set TILES=27
for rows in 320 1280; do part "groups of $rows" src 20 benchmarks/kernels.py --users 1024 100 --only head_b --set GROUP=$rows; done
for name in ahead_64 not_ahead; do variant $name; part $name src 20 benchmarks/kernels.py --users 1024 100 --only recur_f recur_b --source "$WORK/$name.cu"; done
part "block of 100" src 20 -c "$rounds" 100/100
