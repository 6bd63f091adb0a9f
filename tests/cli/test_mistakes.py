"""Every common mistake ends in one short message that names field, place and fix, and in exit code 2."""

import pytest

from lit_group_rl.cli.main import main

FILES = {
    "duplicate": "steps: 3\nmodel:\n  minibatches: 1\n  minibatches: 2\n",
    "tab": "model:\n\tminibatches: 1\n",
    "latin1": b"# caf\xe9\n",
    "nan": "model:\n  learning_rate: .nan\n",
    "part": "model:\n  advantage:\n    class_path: GroupRelativ\n",
    "option": "model:\n  advantage:\n    class_path: GroupRelative\n    init_args:\n      epss: 1\n",
    "slot": "model:\n  advantag: GroupRelative\n",
    "top": "modle:\n  advantage: GroupRelative\n",
    "beside": "model:\n  advantage:\n    class_path: GroupRelative\n    ddof: 0\n",
    "listed": "model:\n  rewards: ExactMatch\n",
    "literal": "model:\n  advantage:\n    init_args:\n      divide_by: group_sdt\n",
    "negative": "model:\n  clip_policy:\n    init_args:\n      low: -0.5\n",
    "fraction": "model:\n  minibatches: 2.5\n",
    "schedule": "model:\n  clip_policy:\n    init_args:\n      low: {class_path: Linear, init_args: {end: 0.1}}\n",
    "loop": "model:\n  minibatches: 64\n",
    "fsdp": "trainer:\n  strategy: fsdp\n",
}
MISTAKES = [
    # nothing but names: answered without torch
    ("fit", ["recipe: none is given", "lit-group-rl fit grpo"]),
    ("fit gprpo", ["'gprpo'", "Did you mean 'grpo'?"]),
    ("fit grpo scale/smok", ["'scale/smok'", "Did you mean 'scale/smoke'?"]),
    ("fit scale/smoke", ["model.sampler", "names no class", "smoke.yaml line", "Put a recipe first"]),
    ("fit grpo duplicate.yaml", ["model.minibatches", "twice", "line 3", "duplicate.yaml line 4"]),
    ("fit grpo tab.yaml", ["tab", "tab.yaml line 2"]),
    ("fit grpo latin1.yaml", ["UTF-8", "byte 5", "latin1.yaml line 1"]),
    ("fit grpo nan.yaml", ["model.learning_rate", ".nan", "nan.yaml line 2"]),
    (
        "fit grpo part.yaml",
        ["model.advantage", "'GroupRelativ'", "part.yaml line 3", "'GroupRelative'?", "ReinforcePP"],
    ),
    ("fit grpo option.yaml", ["model.advantage.epss", "option.yaml line 5", "'eps'?", "divide_by, ddof, eps"]),
    ("fit grpo slot.yaml", ["model.advantag", "slot.yaml line 2", "'advantage'?"]),
    ("fit grpo top.yaml", ["modle", "top.yaml line 1", "'model'?"]),
    ("fit grpo beside.yaml", ["model.advantage.ddof", "beside class_path", "init_args"]),
    ("fit grpo listed.yaml", ["model.rewards", "by name", "listed.yaml line 2", "{a_name: ExactMatch}"]),
    ("fit grpo fsdp.yaml", ["trainer.strategy", "fsdp.yaml line 2", "fsdp2"]),
    ("fit grpo --trainer.strategy=fsdp", ["trainer.strategy", "command line", "fsdp2"]),
    ("fit grpo --model.advantage=GAEE", ["model.advantage", "'GAEE'", "command line", "'GAE'?"]),
    ("fit grpo --model.advantage=FixedClip", ["model.advantage", "does not fit", "It fits: clip_policy"]),
    ("fit grpo --model.advantage.epss=1", ["epss", "GroupRelative", "'eps'?"]),
    ("fit grpo --learning_rate=1", ["--learning_rate", "--model.learning_rate?"]),
    ("fit grpo --stepps 5", ["--stepps", "--steps?"]),
    ("fit grpo --model.learning_rate=nan", ["model.learning_rate", "nan"]),
    ("fit grpo --ckpt_path=x", ["ckpt_path", "--resume"]),
    ("fit grpo --trainer.gradient_clip_val=1", ["trainer.gradient_clip_val", "model.max_grad_norm"]),
    ("fit grpo --trainer.accumulate_grad_batches=2", ["model.micro_batch_tokens"]),
    ("fit grpo --trainer.max_epochs=1", ["trainer.max_epochs", "Set steps"]),
    ("fit grpo --trainer.max_steps=1", ["trainer.max_steps", "Set steps"]),
    ("fit grpo --trainer.val_check_interval=1", ["model.heldout.every"]),
    ("fit grpo --model.steps=1", ["model.steps", "Set the top-level steps"]),
    ("fit grpo --model.policy=null", ["model.policy", "missing"]),
    (
        "check grpo --no-user-code --model.rewards.exact=mine.Foo",
        ["model.rewards.exact", "mine.Foo", "outside the package"],
    ),
    # types and values: the parser and the constructors
    ("fit grpo literal.yaml", ["model.advantage.divide_by", "'group_sdt'", "literal.yaml line 4", "'group_std'?"]),
    ("fit grpo negative.yaml", ["model.clip_policy.low", "must lie in [0, 1]", "-0.5", "negative.yaml line 4"]),
    ("fit grpo fraction.yaml", ["model.minibatches", "a whole number", "2.5", "fraction.yaml line 2"]),
    ("fit grpo schedule.yaml", ["model.clip_policy.low.start", "missing", "schedule.yaml line 4"]),
    ("fit grpo loop.yaml --data.prompts_per_step=32", ["model.minibatches", "32 prompts", "loop.yaml line 2"]),
    ("fit grpo --steps=0", ["steps", "above 0", "got 0"]),
    ("fit grpo --steps=2.5", ["steps", "whole number", "2.5"]),
    (
        "fit grpo --model.advantage=os.system",
        ["model.advantage", "'os.system' is no AdvantageEstimator", "GroupRelative"],
    ),
    ("fit grpo --model.advantage=mine.Foo", ["model.advantage", "'mine.Foo' is no AdvantageEstimator"]),
    ("fit grpo --model.advantage=nope.Foo", ["model.advantage", "'nope.Foo'", "No module named 'nope'"]),
    ("fit grpo --model.optimizer=AdamWW", ["model.optimizer", "'AdamWW'", "'AdamW'?"]),
    ("fit grpo --trainer.device=1", ["--trainer.device", "--trainer.devices?"]),
    ("fit grpo --trainer.devices=foo", ["trainer", "devices"]),
    ("fit grpo --resume=runs/none", ["resume", "runs/none does not exist"]),
    ("fit grpo --run_name=../out", ["run_name", "'../out'"]),
    ("validate grpo", ["resume", "whose weights", "--resume=RUN"]),
    ("export runs/none out", ["export", "runs/none", "no checkpoint"]),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, content in FILES.items():
        (tmp_path / f"{name}.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "mine.py").write_text("class Foo: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("line", "said"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_told_in_short(folder, capsys, line, said):
    code = main(line.split())
    out, err = capsys.readouterr()
    assert code == 2, err
    error = err[err.index("error: ") :]
    assert len(error.splitlines()) <= 6
    assert [word for word in said if word not in error] == []
    assert "usage:" not in out + err
    assert "Traceback" not in err
    assert not (folder / "runs").exists()


def test_a_bug_keeps_its_traceback(folder):
    # not the user's mistake in the recipe: the constructor itself breaks
    (folder / "broken.py").write_text(
        "from lit_group_rl.advantages.base import AdvantageEstimator\n"
        "class Broken(AdvantageEstimator):\n"
        "    def __init__(self) -> None:\n        self.x = {}['nothing']\n"
        "    def estimate(self, batch): ...\n"
    )
    with pytest.raises(KeyError, match="nothing"):
        main(["fit", "grpo", "--model.advantage=broken.Broken"])
