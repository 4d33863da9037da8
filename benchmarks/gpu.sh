#!/bin/sh
# What to run on a machine with a CUDA GPU, from the root of the repository, in the environment that `make` made:
#   . .venv/bin/activate && sh benchmarks/gpu.sh OUT                    all parts, in order; somewhat over an hour on an H100
#   sh benchmarks/gpu.sh OUT warm-start reader reader-eval lora         these parts, half an hour
# Each part takes at most ten minutes, writes OUT/<part>.txt, and the next one runs even if it fails; the last lines say
# which did. What matters most comes first: the tests, the timings, the quickstart. Nothing is downloaded.
#   DEVICE=cpu SIZE=tiny     that the parts run, without a GPU
#   SIZE=60M                 parameters of the reader: 20M, 30M (the default) or 60M
#   CORPUS=FOLDER            documents or passages that the reader reads; the default, docs, is small
out=${1:?usage: sh benchmarks/gpu.sh OUT [PART ...]}
shift
wanted="$*"
device=${DEVICE:-cuda}
size=${SIZE:-30M}
corpus=${CORPUS:-docs}
limit=${LIMIT:-600}
mkdir -p "$out"
failed=""
known=""
part() {
    name=$1
    shift
    known="$known $name"
    case " ${wanted:-$name} " in *" $name "*) ;; *) return ;; esac
    echo "$name: $*"
    timeout "$limit" "$@" >"$out/$name.txt" 2>&1 || failed="$failed $name"
}
part machine nvidia-smi
part tests python -m pytest -q -n 0 -m gpu
part verify-flex mem1 verify --device "$device" --attention flex
part verify-blocks mem1 verify --device "$device" --attention blocks
part verify-flex-full mem1 verify --device "$device" --attention flex --context full
# one shape a run, so that each takes minutes and a failure loses one
for shape in 0.5B 1.5B 7B; do
    part "timings-$shape" python benchmarks/gpu.py --shapes "$shape"
done
part timings-tiny python benchmarks/gpu.py --shapes tiny --device "$device" --repeats 1 --product 256
part quickstart mem1 quickstart --out "$out/quickstart" --json
# the same policy, tasks and seed on both devices: the rows should agree but for a rare tie
part eval-cpu mem1 eval --device cpu --limit 50 --objectives 1,2,4 --json
part eval-cuda mem1 eval --device "$device" --limit 50 --objectives 1,2,4 --json
part eval-bfloat16 mem1 eval --device "$device" --dtype bfloat16 --limit 50 --objectives 1,2,4 --json
# a reader of 20 to 60 million parameters from nothing, on clozes, N = 1 to 16; adapters on a 1.7B shape
for each in warm-start reader reader-eval lora; do
    part "$each" python benchmarks/gpu_train.py "$each" --out "$out/trained" --device "$device" --size "$size" \
        --corpus "$corpus"
done
part train mem1 train atlas-quick --device "$device" --out "$out/train" "rl.curriculum=[{steps=4,objectives=[2]}]"
part resume mem1 train atlas-quick --device cpu --out "$out/train" "rl.curriculum=[{steps=4,objectives=[2]}]" --resume
part ppo mem1 train atlas-ppo --device "$device" --out "$out/ppo" "rl.curriculum=[{steps=2,objectives=[2]}]" --no-evaluate
part torchrun torchrun --nproc-per-node 1 -m mem1 train atlas-quick --out "$out/ranks" \
    "rl.curriculum=[{steps=2,objectives=[2]}]" --no-evaluate
for name in $wanted; do
    case "$known " in *" $name "*) ;; *) echo "unknown part $name; known:$known" && failed="$failed $name" ;; esac
done
echo "failed:${failed:- nothing}"
[ -z "$failed" ]
