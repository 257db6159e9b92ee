#!/bin/bash
# Explorer, trainer, and an explorer that joins later, as processes of their own on this machine.
#
#   bash examples/async_gsm8k/run.sh [FOLDER [OPTIONS FOR ALL THREE]]
#
# On a CPU the three files run as they are but for paths and sizes: the tiny model and sums of examples/prepare.py. Set
# TRINITY_MODEL_PATH, TRINITY_TASKSET_PATH and TRINITY_NEW_TASKSET_PATH for your own, and SIZES to what fits them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-async_gsm8k}
shift || true
trinity=${TRINITY:-trinity}
tiny=$PWD/tiny/sums

mkdir -p "$folder"
cd "$folder"
export TRINITY_MODEL_PATH=${TRINITY_MODEL_PATH:-$tiny/model}
if [ -z "${TRINITY_TASKSET_PATH:-}" ]; then
    [ -d "$tiny" ] || { echo "$tiny is missing; run: python examples/prepare.py sums" >&2; exit 1; }
    head -n 384 "$tiny/tasks/train.jsonl" >first.jsonl
    tail -n 128 "$tiny/tasks/train.jsonl" >second.jsonl
    export TRINITY_TASKSET_PATH=$PWD/first.jsonl TRINITY_NEW_TASKSET_PATH=$PWD/second.jsonl
fi

sizes=${SIZES:-cluster.gpu_per_node=0 model.max_model_len=40 model.max_response_tokens=24 synchronizer.sync_interval=2}
of_explorer=${EXPLORER_SIZES:-buffer.batch_size=16 explorer.rollout_model.engine_num=1 explorer.runner_per_model=128}
of_trainer=${TRAINER_SIZES:-buffer.train_batch_size=128 algorithm.optimizer.lr=2e-4}
job=${TRINITY_CHECKPOINT_ROOT_DIR:-checkpoints}/async_gsm8k/grpo

start() { # component, its sizes, options for all
    local component=$1 options=() size
    for size in $sizes $2; do options+=(--set "$size"); done
    shift 2
    $trinity run --config "$here/$component.yaml" "${options[@]}" "$@" >"$component.out" 2>&1 &
}

children=()
trap '[ ${#children[@]} = 0 ] || kill "${children[@]}" 2>/dev/null || true' EXIT
start trainer "$of_trainer" "$@"
children+=($!)
start explorer "$of_explorer" "$@"
children+=($!)
# The second explorer joins when the trainer has published new weights, from which it starts.
until [ -d "$job/weights" ] || ! kill -0 "${children[0]}" 2>/dev/null; do sleep 0.2; done
TRINITY_TASKSET_PATH=${TRINITY_NEW_TASKSET_PATH:-$TRINITY_TASKSET_PATH} start explorer_new "$of_explorer" "$@"
children+=($!)

status=0
for child in "${children[@]}"; do wait "$child" || status=$?; done
children=()
tail -n 1 trainer.out explorer.out explorer_new.out
exit $status
