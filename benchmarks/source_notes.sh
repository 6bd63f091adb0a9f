#!/bin/sh
# The questions of the interview notes that a run can answer: see docs/results.md. Stopped and given again, it goes on.
# sh benchmarks/source_notes.sh [FOLDER], about an hour on one core
set -eu
cd "$(dirname "$0")/.."
OUT="${1:-compare}"
N=benchmarks/source_notes
lit-group-rl compare grpo grpo+$N/group4.yaml grpo+$N/group16.yaml gspo_supervised \
  dapo_dynamic_clip grpo+$N/asymmetric.yaml \
  grpo+$N/no_division.yaml vapo_light_critic grpo+$N/no_division.yaml+$N/group4.yaml vapo_light_critic+$N/group4.yaml \
  gspo_stochastic gspo_stochastic+$N/constant_noise.yaml ppo+$N/same_rows.yaml \
  --config=$N/off_policy.yaml --steps=80 --seeds=4 --out="$OUT/source_notes"
lit-group-rl compare dapo_dual_agent dapo_dual_agent+$N/no_replay.yaml dapo_dual_agent+$N/no_ema.yaml \
  dapo_dual_agent+$N/no_freeze.yaml --steps=120 --seeds=3 --out="$OUT/evaluator"
