"""Checkpoints survive: what is broken is noticed and passed over, what cannot be written leaves the old ones alone."""

import errno
import json
import logging
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lit_group_rl import checkpoint
from lit_group_rl.aux_losses import KL
from lit_group_rl.callbacks.checkpoint import CannotSave, CheckpointCallback
from lit_group_rl.evaluation import HeldOut
from lit_group_rl.rewards.runner import RewardBroken
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import RecipeError
from tests.tiny_runs import Digits, digest, fit

FILES = (checkpoint.WEIGHTS, checkpoint.STATE, checkpoint.MANIFEST)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of three steps with a checkpoint after each, the newest two kept."""
    folder = tmp_path_factory.mktemp("run")
    fit(steps=3, callbacks=[CheckpointCallback(str(folder), every=1)])
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it that a test may damage."""
    shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("lock"))
    return tmp_path / "run"


def stored(run, step=3):
    return run / "checkpoints" / f"step_{step:06d}"


def test_the_newest_two_are_kept_and_the_pointer_names_the_last(run):
    folder = run / "checkpoints"
    assert sorted(p.name for p in folder.iterdir()) == ["last", "step_000002", "step_000003"]
    assert (folder / "last").read_text() == "step_000003"
    assert sorted(p.name for p in stored(run).iterdir()) == sorted(FILES)
    assert checkpoint.newest(run).state["rl_step"] == 3


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def empty(path):
    path.write_bytes(b"")


def alter(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, empty, alter, Path.unlink])
def test_a_damaged_file_is_noticed_and_the_previous_checkpoint_used(run, name, damage, caplog):
    damage(stored(run) / name)
    with caplog.at_level(logging.WARNING):
        found = checkpoint.newest(run)
    assert found.state["rl_step"] == 2
    assert "step_000003" in caplog.text


def test_every_altered_byte_is_noticed(run):
    """100 flips of one bit anywhere in the three files."""
    rng = random.Random(0)
    sizes = {name: (stored(run) / name).stat().st_size for name in FILES}
    for _ in range(100):
        name = rng.choices(FILES, weights=[sizes[n] for n in FILES])[0]
        path = stored(run) / name
        whole = path.read_bytes()
        altered = bytearray(whole)
        altered[rng.randrange(len(altered))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(altered))
        try:
            found = checkpoint.read(stored(run))
        except checkpoint.BadCheckpoint:
            found = None
        assert found is None or name == checkpoint.MANIFEST, f"a flip in {name} was not noticed"
        path.write_bytes(whole)
    assert checkpoint.read(stored(run)).state["rl_step"] == 3


def test_the_half_of_a_save_is_no_checkpoint_and_is_cleaned_up(run):
    half = run / "checkpoints" / ".writing_step_000004_1"
    shutil.copytree(stored(run), half)
    (half / checkpoint.MANIFEST).unlink()
    assert checkpoint.newest(run).state["rl_step"] == 3
    fit(steps=4, resume_from=run, callbacks=[CheckpointCallback(str(run), every=1)])
    assert not half.exists()
    assert checkpoint.newest(run).state["rl_step"] == 4


def test_a_pointer_to_nothing_is_passed_over(run, caplog):
    (run / "checkpoints" / "last").write_text("step_000009")
    with caplog.at_level(logging.WARNING):
        assert checkpoint.newest(run).state["rl_step"] == 3
    assert "step_000009" in caplog.text


def test_nothing_usable_is_refused(run):
    for folder in (run / "checkpoints").glob("step_*"):
        truncate(folder / checkpoint.STATE)
    with pytest.raises(RecipeError, match="holds no usable checkpoint"):
        fit(steps=4, resume_from=run)


def rewritten(run, **changes):
    """The newest checkpoint with another state, under a manifest that fits."""
    state = checkpoint.read(stored(run)).state | changes
    torch.save(state, stored(run) / checkpoint.STATE)
    manifest = json.loads((stored(run) / checkpoint.MANIFEST).read_text())
    path = stored(run) / checkpoint.STATE
    manifest["files"][checkpoint.STATE] = {"size": path.stat().st_size, "sha256": checkpoint._sha256(path)}
    (stored(run) / checkpoint.MANIFEST).write_text(json.dumps(manifest))


def test_another_format_is_not_read(run):
    rewritten(run, format=99)
    with pytest.raises(checkpoint.BadCheckpoint, match="format 99, this version reads 1"):
        checkpoint.read(stored(run))


class Evil:
    """Unpickled without restriction, it would make a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_a_malicious_state_runs_nothing(run, tmp_path):
    rewritten(run, evil=Evil(str(tmp_path / "marker")))
    with pytest.raises(checkpoint.BadCheckpoint, match="cannot be read"):
        checkpoint.read(stored(run))
    assert not (tmp_path / "marker").exists()


def test_another_architecture_is_refused_with_the_tensors_that_differ(run):
    wider = CharPolicy(hidden_size=48, layers=1, heads=2, context_tokens=32)
    with pytest.raises(RecipeError, match=r"another architecture.*run \(\d+, 48\), checkpoint \(\d+, 32\)"):
        fit(steps=4, resume_from=run, policy=wider)


def test_the_reference_is_that_of_the_start(tmp_path):
    parts = {"aux_losses": {"kl": KL(0.1)}, "learning_rate": 0.01}
    fit(steps=2, callbacks=[CheckpointCallback(str(tmp_path), every=1)], **parts)
    again, log = fit(steps=3, resume_from=tmp_path, **parts)
    start = CharPolicy(hidden_size=32, layers=1, heads=2, context_tokens=32)
    start.load()
    for (name, kept), fresh in zip(again.policy.reference.named_parameters(), start.net.parameters(), strict=True):
        assert torch.equal(kept, fresh), name
    assert log[3]["loss/kl"] > 1e-5  # the resumed weights have moved away from it
    other = CharPolicy(hidden_size=32, layers=1, heads=2, context_tokens=32, init_seed=1)
    with pytest.raises(RecipeError, match="the reference of the KL term would be another"):
        fit(steps=3, resume_from=tmp_path, policy=other, **parts)


# ---- what cannot be written


class Full:
    """The disk is full from the ``after``-th file on."""

    def __init__(self, monkeypatch, after):
        self.left = after
        write = checkpoint._sync_file

        def failing(path):
            if self.left <= 0:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            self.left -= 1
            write(path)

        monkeypatch.setattr(checkpoint, "_sync_file", failing)


@pytest.mark.parametrize("after", range(5))
def test_a_full_disk_leaves_the_old_checkpoints(run, after, monkeypatch, caplog):
    Full(monkeypatch, after)
    module, _ = fit(steps=5, resume_from=run, callbacks=[CheckpointCallback(str(run), every=1)])
    assert module.rl_step == 5  # one failure more would end the run
    assert "No space left" in caplog.text
    monkeypatch.undo()
    assert checkpoint.newest(run).state["rl_step"] in (3, 4)
    assert not list((run / "checkpoints").glob(".writing_*"))


def test_no_room_is_noticed_before_anything_is_written(run, monkeypatch, caplog):
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1, 1, 0))
    monkeypatch.setattr(checkpoint, "_write", lambda *args: pytest.fail("it was written"))
    fit(steps=4, resume_from=run, callbacks=[CheckpointCallback(str(run), every=1)])
    assert "0.0 MiB are free" in caplog.text


def test_three_failures_in_a_row_end_the_run(run, monkeypatch):
    Full(monkeypatch, 0)
    with pytest.raises(CannotSave, match="3 checkpoints in a row"):
        fit(steps=8, resume_from=run, callbacks=[CheckpointCallback(str(run), every=1)])
    assert CannotSave.exit_code == 3


def test_a_real_full_disk(run, tmp_path, caplog):
    """On a file system with room for one checkpoint and a half; needs the right to mount one."""
    size = sum(p.stat().st_size for p in stored(run).iterdir()) * 3 // 2
    small = tmp_path / "small"
    small.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small)], capture_output=True)
    if made.returncode:
        pytest.skip("may not mount a file system")
    try:
        module, _ = fit(steps=3, callbacks=[CheckpointCallback(str(small), every=1, keep=2)])
        assert module.rl_step == 3
        assert checkpoint.newest(small).state["rl_step"] == 1
        assert "No space left" in caplog.text or "MiB are free" in caplog.text
        assert not list((small / "checkpoints").glob(".writing_*"))
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)  # the lock is held until this process ends


def test_a_place_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match=r"run_root: .* cannot be written"):
        fit(callbacks=[CheckpointCallback(str(tmp_path / "file" / "run"))])


def test_a_second_process_in_the_run_folder_is_refused(tmp_path):
    root = Path(__file__).parents[1]
    code = (
        "import sys, time; from pathlib import Path; from lit_group_rl import checkpoint;"
        "print(checkpoint.claim(Path(sys.argv[1])), flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root)
    try:
        assert other.stdout.readline().strip() == "None"
        with pytest.raises(RecipeError, match=f"another process .host .*, pid {other.pid}"):
            fit(callbacks=[CheckpointCallback(str(tmp_path))])
    finally:
        other.kill()
        other.wait()
    fit(callbacks=[CheckpointCallback(str(tmp_path))])  # the lock went with the process, however it ended


# ---- what must not be written


@pytest.mark.parametrize("where", ["weights", "optimizer"])
def test_a_state_that_is_not_finite_is_not_kept(tmp_path, where, caplog):
    class Poison(CheckpointCallback):
        def on_metrics(self, trainer, module, step, metrics):
            if step == 2:
                p = next(module.policy.net.parameters())
                value = p.data if where == "weights" else module.trainer.optimizers[0].state[p]["exp_avg"]
                value.view(-1)[0] = float("nan")
            super().on_metrics(trainer, module, step, metrics)

    fit(steps=2, callbacks=[Poison(str(tmp_path), every=1)])
    assert "holds NaN or Inf" in caplog.text
    assert checkpoint.newest(tmp_path).state["rl_step"] == 1


def test_the_best_by_held_out_accuracy_is_kept(tmp_path):
    callback = CheckpointCallback(str(tmp_path), every=1, keep=1)
    seen = iter([0.1, 0.9, 0.2, 0.3, 0.4])
    judge = callback.on_metrics
    callback.on_metrics = lambda t, m, step, metrics: judge(t, m, step, metrics | {callback.monitor: next(seen)})
    fit(steps=4, heldout=HeldOut(every=1), callbacks=[callback])
    assert (tmp_path / "checkpoints" / "best").read_text() == "step_000001"
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("step_*")) == ["step_000001", "step_000004"]
    assert checkpoint.newest(tmp_path, "best").state["rl_step"] == 1


def test_saving_changes_nothing_in_the_run(tmp_path):
    """Not even before the optimizer has a memory: with equal rewards no update is made."""

    class Same(Digits):
        def score(self, samples):
            return [
                0.5 if len(samples) and s.prompt[0] in "0123" else v
                for s, v in zip(samples, super().score(samples), strict=True)
            ]

    saved, _ = fit(steps=3, rewards={"same": Same()}, callbacks=[CheckpointCallback(str(tmp_path), every=1)])
    plain, _ = fit(steps=3, rewards={"same": Same()})
    assert digest(saved) == digest(plain)


def test_weights_are_plain_safetensors(run):
    weights = load_file(stored(run) / checkpoint.WEIGHTS)
    assert all(name.startswith("policy.model.") for name in weights)
    assert all(torch.isfinite(w).all() for w in weights.values())


# ---- ends


def test_a_run_that_a_broken_reward_ends_keeps_its_last_step(tmp_path):
    class Broken(Digits):
        def score(self, samples):
            raise KeyError("the verifier is gone")

    with pytest.raises(RewardBroken):
        fit(steps=9, rewards={"broken": Broken()}, callbacks=[CheckpointCallback(str(tmp_path), every=100)])
    assert checkpoint.newest(tmp_path).state["rl_step"] == 2


def test_a_finished_run_says_so_and_does_nothing(run, caplog):
    with caplog.at_level(logging.INFO):
        _, log = fit(steps=3, resume_from=run, callbacks=[CheckpointCallback(str(run), every=1)])
    assert "already complete: 3 of 3 RL steps" in caplog.text
    assert not log


@pytest.mark.parametrize("steps", [2, 3])
def test_a_broken_off_evaluation_is_made_up_for(tmp_path, steps):
    """Also that of the last step, when no RL step is left."""

    class Interrupted(HeldOut):
        def run(self, *args):
            if "armed" in trap and args[0].net is not None and len(trap) == 1:
                trap.add("gone off")
                raise KeyError("stop")
            super().run(*args)

    trap = set()
    parts = {"heldout": HeldOut(every=2)}
    unbroken, expected = fit(steps=steps, **parts)

    class Arm(CheckpointCallback):
        def on_train_batch_start(self, trainer, module, *args):
            if module.rl_step == 1:
                trap.add("armed")

    with pytest.raises(KeyError):
        fit(steps=steps, callbacks=[Arm(str(tmp_path), every=1)], heldout=Interrupted(every=2))
    kept = checkpoint.newest(tmp_path)
    assert (kept.state["rl_step"], kept.state["pending"] is None) == (2, False)
    resumed, log = fit(steps=steps, resume_from=tmp_path, callbacks=[CheckpointCallback(str(tmp_path))], **parts)
    assert digest(resumed) == digest(unbroken)
    timed = ("time/", "perf/")
    for step in range(2, steps + 1):
        one, two = ({k: v for k, v in run[step].items() if not k.startswith(timed)} for run in (expected, log))
        assert one == two
    assert checkpoint.newest(tmp_path).state["pending"] is None
