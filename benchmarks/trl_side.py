"""TRL's GRPOTrainer on a workload, in its fastest plain setting on a CPU: float32, no recomputation."""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

from benchmarks.meter import Meter, rss_mb
from benchmarks.workloads import Workload, as_text, make_model, make_prompts, make_tokenizer, reward


def run(w: Workload, cycles: int, warmup: int, flops: bool) -> dict[str, Any]:
    """Train ``warmup + cycles`` rollouts."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch
    import transformers
    import trl
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    transformers.utils.logging.set_verbosity_error()
    prompts = make_prompts(w, w.prompts * (cycles + warmup))
    ids_of = {as_text(p): p for p in prompts}
    rows_per_update, rest = divmod(w.rows, w.minibatches)
    assert rest == 0, "rows must divide into minibatches"
    meter = Meter(flops)

    def reward_function(prompts, completion_ids, **_):
        return [reward(w, ids_of[p], c) for p, c in zip(prompts, completion_ids, strict=True)]

    class Marks(TrainerCallback):
        def on_train_begin(self, *args, **kwargs):
            meter.mark()

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % w.minibatches == 0:
                meter.mark()
                if state.global_step == w.minibatches * warmup:
                    meter.reset()

        def on_pre_optimizer_step(self, *args, **kwargs):
            self.phase = meter.phase("optimizer")
            self.phase.__enter__()

        def on_optimizer_step(self, *args, **kwargs):
            self.phase.__exit__(None, None, None)

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            per_device_train_batch_size=rows_per_update,
            gradient_accumulation_steps=1,
            steps_per_generation=w.minibatches,
            num_generations=w.group,
            max_completion_length=w.max_completion,
            max_steps=w.minibatches * (cycles + warmup),
            beta=0.0,
            learning_rate=w.lr,
            lr_scheduler_type="constant",
            temperature=1.0,
            shuffle_dataset=False,
            seed=w.seed,
        )
        trainer = GRPOTrainer(
            model=make_model(w),
            reward_funcs=reward_function,
            args=config,
            processing_class=make_tokenizer(w),
            train_dataset=Dataset.from_dict({"prompt": list(ids_of)}),
            callbacks=[Marks()],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        inner = trainer._generate_single_turn

        def generate(*args, **kwargs):
            drawn = inner(*args, **kwargs)
            meter.lengths.append([len(c) for c in drawn[0]])
            return drawn

        trainer._generate_single_turn = generate
        meter.wrap(trainer, "_generate_single_turn", "rollout")
        meter.wrap(trainer, "_calculate_rewards", "reward")
        meter.wrap(
            trainer,
            "_get_per_token_logps_and_entropies",
            lambda *a, **k: "forward" if torch.is_grad_enabled() else "old log-probs",
        )
        meter.wrap(trainer, "compute_loss", "forward")
        meter.wrap(trainer.accelerator, "backward", "backward")
        base = rss_mb()
        trainer.train()
    return {"trl": trl.__version__} | meter.result(warmup, w.rows, base)
