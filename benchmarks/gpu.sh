#!/bin/sh
# What to run on a machine with a CUDA GPU, from the root of the repository, in the environment that `make` made:
#   . .venv/bin/activate && sh benchmarks/gpu.sh OUT
# Each part writes OUT/<part>.txt and goes on if one before it fails; the last lines say which did. What matters most
# comes first: the tests, the timings, the quickstart. Under an hour on an H100. Nothing is downloaded.
out=${1:?usage: sh benchmarks/gpu.sh OUT}
mkdir -p "$out"
failed=""
part() {
    name=$1
    shift
    echo "$name: $*"
    "$@" >"$out/$name.txt" 2>&1 || failed="$failed $name"
}
part machine nvidia-smi
part tests python -m pytest -q -n 0 -m gpu
part verify-flex mem1 verify --device cuda --attention flex
part verify-blocks mem1 verify --device cuda --attention blocks
part verify-flex-full mem1 verify --device cuda --attention flex --context full
# one shape a run, so that each takes minutes and a failure loses one
for shape in 0.5B 1.5B 7B; do
    part "timings-$shape" python benchmarks/gpu.py --shapes "$shape"
done
part quickstart mem1 quickstart --out "$out/quickstart" --json
# the same policy, tasks and seed on both devices: the rows should agree but for a rare tie
part eval-cpu mem1 eval --device cpu --limit 50 --objectives 1,2,4 --json
part eval-cuda mem1 eval --device cuda --limit 50 --objectives 1,2,4 --json
part eval-bfloat16 mem1 eval --device cuda --dtype bfloat16 --limit 50 --objectives 1,2,4 --json
part train mem1 train atlas-quick --device cuda --out "$out/train" "rl.curriculum=[{steps=4,objectives=[2]}]"
part resume mem1 train atlas-quick --device cpu --out "$out/train" "rl.curriculum=[{steps=4,objectives=[2]}]" --resume
part ppo mem1 train atlas-ppo --device cuda --out "$out/ppo" "rl.curriculum=[{steps=2,objectives=[2]}]" --no-evaluate
part torchrun torchrun --nproc-per-node 1 -m mem1 train atlas-quick --out "$out/ranks" \
    "rl.curriculum=[{steps=2,objectives=[2]}]" --no-evaluate
echo "failed:${failed:- nothing}"
