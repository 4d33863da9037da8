#!/usr/bin/env bash
# The published run, from an empty machine to the paper's table: published-run.md beside it explains each stage.
#
#   run.sh                        all stages, in the current folder
#   run.sh train evaluate         some of them
#   run.sh --dry-run [STAGE...]   prints the commands
#
# A stage that is done is skipped; one that was cut off continues. `rm .done/STAGE` repeats a stage.
#
#   GPUS    number of 80 GB GPUs: 1, 4 or 8 (default 8)
#   SIZES   numbers of questions per task in the evaluation (default "1 2 3 4 6 8 10 16")
#   LIMIT   evaluated tasks for each size (default 500)
#   SOURCE  the checkout of mem1 (default: the one that this script is in)
#   SEARCH_PORT, POLICY_PORT
set -euo pipefail

SOURCE=${SOURCE:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
GPUS=${GPUS:-8}
SIZES=${SIZES:-1 2 3 4 6 8 10 16}
LIMIT=${LIMIT:-500}
SEARCH_PORT=${SEARCH_PORT:-8000}
POLICY_PORT=${POLICY_PORT:-8100}
STAGES=(install download prompts search train evaluate baselines table)
SEARCH="tasks.retriever.urls=[\"http://127.0.0.1:$SEARCH_PORT\"]"

# SERVERS are the GPUs of vLLM; with one GPU, it serves only after the training
case $GPUS in
1) TRAINERS=1 SERVERS=(0) RECIPE=qwen2.5-7b-multihop/grpo OPTIONS=("lora.rank=32" 'rollout={engine="local"}'
    'tasks.questions=["questions/nq/train.jsonl","questions/hotpotqa/train.jsonl"]'
    'tasks.without=["questions/nq/test.jsonl","questions/hotpotqa/dev.jsonl"]') ;;
4) TRAINERS=3 SERVERS=(3) RECIPE=qwen2.5-7b-multihop/mem1-published OPTIONS=("distributed.cpu_offload=true") ;;
8) TRAINERS=6 SERVERS=(6 7) RECIPE=qwen2.5-7b-multihop/mem1-published OPTIONS=() ;;
*) echo "GPUS=$GPUS: this script knows 1, 4 and 8; see published-run.md beside it for others" >&2; exit 1 ;;
esac

dry_run=false
started=()
wanted=()
if [ "$GPUS" -gt 1 ]; then
    urls=()
    for number in "${!SERVERS[@]}"; do urls+=("\"http://127.0.0.1:$((POLICY_PORT + number))\""); done
    OPTIONS+=("rollout.servers=[$(IFS=,; echo "${urls[*]}")]")
fi

run() { # prints a command as it can be pasted, and runs it
    local word line=()
    for word in "$@"; do
        [[ $word =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]] || word="'$word'"
        line+=("$word")
    done
    echo "${line[*]}"
    $dry_run || "$@"
}

quietly() { # the same for one that writes to a file or needs a shell
    printf '%s\n' "$1"
    $dry_run || bash -euo pipefail -c "$1"
}

background() { # NAME URL COMMAND: starts a server, and waits until it answers
    local name=$1 url=$2
    printf '%s\n' "$3"
    $dry_run && return
    mkdir -p logs
    bash -c "exec $3" >"logs/$name.log" 2>&1 &
    started+=($!)
    until curl --silent --output /dev/null --max-time 5 "$url"; do
        kill -0 "${started[-1]}" 2>/dev/null || { echo "$name ended; its log is logs/$name.log" >&2; exit 1; }
        sleep 1
    done
}

stop() {
    [ ${#started[@]} -eq 0 ] || kill "${started[@]}" 2>/dev/null || true
    wait
    started=()
}
trap stop EXIT

serve_policy() { # FOLDER: one server for each GPU that serves, for training or evaluation
    local number port
    for number in "${!SERVERS[@]}"; do
        port=$((POLICY_PORT + number))
        background "policy-$port" "http://127.0.0.1:$port/v1/models" "env CUDA_VISIBLE_DEVICES=${SERVERS[number]} VLLM_SERVER_DEV_MODE=1 \
.venv-vllm/bin/vllm serve $1 --served-model-name policy --port $port --max-model-len 8192 \
--logprobs-mode processed_logprobs --enable-prefix-caching"
    done
}

serve_search() { # Search-R1's server always listens on port 8000
    background search "http://127.0.0.1:$SEARCH_PORT/docs" ".venv-search/bin/python search-r1/search_r1/search/retrieval_server.py \
--index_path wiki/e5_Flat.index --corpus_path wiki/wiki-18.jsonl --topk 3 \
--retriever_name e5 --retriever_model models/e5-base-v2 --faiss_gpu"
}

evaluate_on_servers() { # NAME POLICY [KEY=VALUE...]: one evaluation for each size
    local name=$1 policy=$2 size number urls=()
    shift 2
    for number in "${!SERVERS[@]}"; do urls+=(--base-url "http://127.0.0.1:$((POLICY_PORT + number))/v1"); done
    serve_policy "$policy"
    for size in $SIZES; do
        run .venv/bin/mem1 eval qwen2.5-7b-multihop/mem1-published "${urls[@]}" --model policy --tokenizer "$policy" \
            --objectives "$size" --limit "$LIMIT" "$SEARCH" "$@" --out "results/$name"
    done
    stop
}

install() {
    run python3 -m venv .venv
    run .venv/bin/pip install "$SOURCE[lora]" matplotlib
    run python3 -m venv .venv-vllm
    run .venv-vllm/bin/pip install vllm
    run python3 -m venv .venv-search
    run .venv-search/bin/pip install torch transformers datasets faiss-gpu-cu12 fastapi uvicorn pyserini
    [ -d search-r1 ] || run git clone --depth 1 https://github.com/PeterGriffinJin/Search-R1 search-r1
    [ -d mem1-release ] || run git clone https://github.com/MIT-MI/MEM1 mem1-release
    run git -C mem1-release checkout --quiet 6f22061
}

download() {
    run .venv/bin/hf download Qwen/Qwen2.5-7B --local-dir models/Qwen2.5-7B
    run .venv/bin/hf download Qwen/Qwen2.5-7B-Instruct --local-dir models/Qwen2.5-7B-Instruct
    run .venv/bin/hf download PeterJinGo/SearchR1-nq_hotpotqa_train-qwen2.5-7b-em-ppo --local-dir models/Search-R1-7B
    run .venv/bin/hf download intfloat/e5-base-v2 --local-dir models/e5-base-v2
    run .venv/bin/hf download RUC-NLPIR/FlashRAG_datasets --repo-type dataset --local-dir questions \
        nq/train.jsonl nq/test.jsonl hotpotqa/train.jsonl hotpotqa/dev.jsonl
    run .venv/bin/hf download PeterJinGo/wiki-18-corpus --repo-type dataset --local-dir wiki wiki-18.jsonl.gz
    quietly 'gunzip --keep --force wiki/wiki-18.jsonl.gz'
    run .venv/bin/hf download PeterJinGo/wiki-18-e5-index --repo-type dataset --local-dir wiki part_aa part_ab
    quietly 'cat wiki/part_aa wiki/part_ab > wiki/e5_Flat.index'
}

prompts() {
    [ -e prompts/mem1-qa.txt ] || run .venv/bin/python "$SOURCE/benchmarks/published_prompts.py" mem1-release --out prompts
    [ -e prompts/search-r1.txt ] || run .venv/bin/python "$SOURCE/benchmarks/published_prompts.py" search-r1 --out prompts
}

search() {
    serve_search
    run curl --silent --fail -H 'content-type: application/json' "http://127.0.0.1:$SEARCH_PORT/retrieve" \
        -d '{"queries": ["Who wrote Hamlet?"], "topk": 1, "return_scores": true}'
    stop
}

train() {
    local launch=(.venv/bin/mem1) resume=()
    [ "$TRAINERS" = 1 ] || launch=(.venv/bin/torchrun --nproc-per-node "$TRAINERS" -m mem1)
    [ ! -f runs/published/config.toml ] || resume=(--resume)
    serve_search
    [ "$GPUS" = 1 ] || serve_policy models/Qwen2.5-7B
    run "${launch[@]}" train "$RECIPE" "${OPTIONS[@]}" "$SEARCH" --no-evaluate --out runs/published "${resume[@]}"
    stop
}

evaluate() {
    serve_search
    evaluate_on_servers mem1 runs/published/policy
}

baselines() {
    serve_search
    evaluate_on_servers full-context models/Qwen2.5-7B-Instruct protocol.kind=framed memory=full \
        budget.context=8192
    serve_search
    evaluate_on_servers truncated models/Qwen2.5-7B-Instruct protocol.kind=framed memory=constant
    serve_search
    evaluate_on_servers search-r1 models/Search-R1-7B protocol.kind=framed memory=full budget.context=8192 \
        protocol.base=search-r1 tasks.prompt.file=prompts/search-r1.txt
}

table() {
    run .venv/bin/python "$SOURCE/benchmarks/published_table.py" results --out results/figure.svg
}

while [ $# -gt 0 ]; do
    case $1 in
    --dry-run) dry_run=true ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" | sed '$d'; exit ;;
    *) [[ " ${STAGES[*]} " == *" $1 "* ]] || { echo "unknown stage $1; known: ${STAGES[*]}" >&2; exit 1; }
        wanted+=("$1") ;;
    esac
    shift
done
for stage in "${wanted[@]:-${STAGES[@]}}"; do
    printf '# %s\n' "$stage"
    if ! $dry_run && [ -e ".done/$stage" ]; then
        echo "done already; rm .done/$stage repeats it"
        continue
    fi
    "$stage"
    $dry_run || { mkdir -p .done && touch ".done/$stage"; }
done
