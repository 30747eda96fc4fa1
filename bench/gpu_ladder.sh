#!/usr/bin/env bash
# Points of compare.ladder on one GPU, all side by side.
#
#   bench/gpu_ladder.sh RUN OUT JOBS POINT [POINT ...]
#
# RUN      a run with the packed corpus. Needed of it: manifest.json, steps/, corpus/summary.json, tokenizer/ and pack/,
#          30 MB for the text of docs/evidence/ladder_plan.json, 13 MB under xz
# OUT      folder of the comparisons; run again, it resumes them
# JOBS     processes for each point; one core for each
# POINT    settings of a point, in quotes: "size=2.65 tokens_a_parameter=5 scale=matched"; with rates=grid or rates=near it is
#          tuned only
#
# Needs what stamm[train] needs. A process is bound by launching kernels: a model of 0.7 M parameters takes 33 steps of 1,024 tokens
# a second on an H100 (compiled; 21 eager), and 18 processes of 0.35 and 0.7 M take 300 together under NVIDIA's MPS, which is started
# where it is installed. Prints the last line of each point; exits with 1 where one has failed or was not finished.
# DEVICE=cpu tries the script without a GPU; SECONDS_EACH ends what is not finished after that time.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
run=$(realpath "$1") out=$2 jobs=$3
shift 3
export PYTHONPATH="$root/src:$root${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=1
mkdir -p "$out"
cd "$out"
if [ "${DEVICE:=cuda}" = cuda ] && command -v nvidia-cuda-mps-control >/dev/null && [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ]; then
  export CUDA_MPS_PIPE_DIRECTORY="$PWD/mps" CUDA_MPS_LOG_DIRECTORY="$PWD/mps"
  mkdir -p mps
  nvidia-cuda-mps-control -d
  trap 'echo quit | nvidia-cuda-mps-control' EXIT
fi
pids=()
for point in "$@"; do
  name=${point// /-}
  # shellcheck disable=SC2206  # a point is several words
  settings=("packed=$run" "pretrain.engine.device=$DEVICE" pretrain.engine.attention=dense pretrain.engine.kernels=stamm $point)
  case $point in
  *rates=grid* | *rates=near*) command=(python3 -m tools.ladder tune "$name" "$jobs" "${settings[@]}") ;;
  *) command=(python3 -m stamm compare ladder "${settings[@]}" --out "$name" --jobs "$jobs") ;;
  esac
  timeout "${SECONDS_EACH:-86400}" "${command[@]}" >"$name.log" 2>&1 &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
for point in "$@"; do echo "$point: $(tail -n 1 "${point// /-}.log")"; done
exit "$failed"
