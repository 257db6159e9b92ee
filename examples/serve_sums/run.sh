#!/bin/bash
# A service, a trainer beside it, and an agent that uses the service, as processes of their own on this machine.
#
#   bash examples/serve_sums/run.sh [FOLDER [OPTIONS FOR BOTH]]
#
# On a CPU the two files run as they are but for sizes: the tiny model and sums of examples/prepare.py. Set
# TRINITY_MODEL_PATH and TRINITY_TASKSET_PATH for your own, SIZES to what fits them, STEPS to the number of commits, and
# PYTHON to the Python of trinity.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-serve_sums}
shift || true
trinity=${TRINITY:-trinity}
python=${PYTHON:-python}
steps=${STEPS:-30}
tiny=$PWD/tiny/sums
export TRINITY_API_KEY=${TRINITY_API_KEY:-$(head -c 18 /dev/urandom | base64 | tr '+/' '-_')}

mkdir -p "$folder"
cd "$folder"
export TRINITY_MODEL_PATH=${TRINITY_MODEL_PATH:-$tiny/model}
tasks=${TRINITY_TASKSET_PATH:-$tiny/tasks/train.jsonl}
[ -e "$tasks" ] || { echo "$tasks is missing; run: python examples/prepare.py sums" >&2; exit 1; }

sizes=${SIZES:-model.max_model_len=40 model.max_response_tokens=24}
of_trainer=${TRAINER_SIZES:-algorithm.optimizer.lr=2e-4}
job=${TRINITY_CHECKPOINT_ROOT_DIR:-checkpoints}/serve_sums/grpo

start() { # component, its sizes, options for all
    local component=$1 options=() size
    for size in $sizes $2; do options+=(--set "$size"); done
    shift 2
    $trinity run --config "$here/$component.yaml" "${options[@]}" "$@" >"$component.out" 2>&1 &
}

children=()
trap '[ ${#children[@]} = 0 ] || kill "${children[@]}" 2>/dev/null || true' EXIT
rm -f "$job/explorer_server_url.txt"
start serve "" "$@"
children+=($!)
start trainer "$of_trainer trainer.total_steps=$steps" "$@"
children+=($!)
until [ -f "$job/explorer_server_url.txt" ] || ! kill -0 "${children[0]}" 2>/dev/null; do sleep 0.2; done
"$python" "$here/agent.py" "$(cat "$job/explorer_server_url.txt")" "$tasks" "$steps" | tee agent.out

status=0
wait "${children[1]}" || status=$?
kill -TERM "${children[0]}"
wait "${children[0]}" || [ $? = 143 ] || status=1
children=()
tail -n 1 trainer.out
exit $status
