import json
import logging
from types import SimpleNamespace

import pytest
from lightning.pytorch.trainer.states import TrainerFn

from lit_group_rl.data import Addition, PromptData, PromptSource, StepPrompts, Table, module
from lit_group_rl.types import Prompt, RecipeError


class Fixed(PromptSource):
    def __init__(self, train, heldout=()):
        self.train, self.heldout = train, heldout

    def load(self, heldout_size):
        return [Prompt(t) for t in self.train], [Prompt(t) for t in self.heldout]


def data_of(train="abcdefg", heldout="uvwxyz", per_step=3, **options):
    data = PromptData(Fixed(train, heldout), prompts_per_step=per_step, **options)
    data.setup()
    return data


def texts(batch):
    return [p.text for p in batch.prompts]


def test_every_pass_holds_every_prompt_once_in_its_own_order():
    stream = data_of().stream
    passes = ["".join(p.text for p in stream.take(7)) for _ in range(4)]
    assert all(sorted(one) == list("abcdefg") for one in passes)
    assert len(set(passes)) > 1


def test_content_does_not_depend_on_how_it_is_cut():
    one, other = data_of(), data_of()
    assert [p.text for p in one.stream.take(20)] == [t for n in (1, 5, 14) for t in texts(other.more(n))]
    assert texts(data_of(seed=2).more(20)) != texts(data_of(seed=1).more(20))


def test_fewer_prompts_than_a_batch_go_round():
    assert sorted(texts(data_of("ab", per_step=4).more(4))) == list("aabb")


def test_resuming_goes_on_where_the_stream_stood():
    whole = texts(data_of().more(30))
    data = data_of()
    data.more(11)
    state = data.state_dict()
    assert all(type(v) is int for v in state.values())
    for early in (False, True):
        resumed = PromptData(Fixed("abcdefg", "uvwxyz"), prompts_per_step=3)
        if not early:
            resumed.setup()
        resumed.load_state_dict(state)
        resumed.setup()
        assert texts(resumed.more(19)) == whole[11:]


def test_resuming_on_other_data_is_said(caplog):
    state = data_of().state_dict()
    with caplog.at_level(logging.WARNING):
        data_of().load_state_dict(state)
    assert not caplog.text
    with caplog.at_level(logging.WARNING):
        data_of("abcxyz").load_state_dict(state)
    assert "fingerprint" in caplog.text


def attach(data, step, steps, fn=TrainerFn.FITTING):
    data.trainer = SimpleNamespace(
        lightning_module=SimpleNamespace(steps=steps, rl_step=step), state=SimpleNamespace(fn=fn)
    )
    return data


def test_the_loader_has_the_remaining_steps_and_draws_only_when_asked():
    data = attach(data_of(), step=2, steps=5)
    loader = data.train_dataloader()
    assert len(loader) == 3
    batches = iter(loader)
    first = next(batches)
    assert first.positions == [0, 1, 2]
    assert data.stream.cursor == 3
    extra = data.more(2, first_position=3)
    assert extra.positions == [3, 4]
    rest = list(batches)
    assert len(rest) == 2
    assert texts(first) + texts(extra) + [t for b in rest for t in texts(b)] == texts(data_of().more(11))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_processes_share_a_step_and_the_held_out_prompts(monkeypatch, world):
    whole = data_of("abcdefghij", per_step=5).more(5)
    monkeypatch.setattr(module, "world_size", lambda: world)
    monkeypatch.setattr(module, "all_objects", lambda value: [value] * world)
    found, held, batches = {}, {}, set()
    for rank in range(world):
        monkeypatch.setattr(module, "rank", lambda rank=rank: rank)
        data = data_of("abcdefghij", heldout=[f"h{i}" for i in range(23)], per_step=5)
        mine = data.more(5)
        assert mine.positions == list(range(rank, 5, world))
        found |= dict(zip(mine.positions, texts(mine), strict=True))
        parts = data.heldout_batches()
        batches.add(len(parts))
        for part in parts:
            assert 0 < len(part) <= 5
            held |= dict(zip(part.positions, texts(part), strict=True))
    assert [found[i] for i in range(5)] == texts(whole)
    assert [held[i] for i in range(23)] == [f"h{i}" for i in range(23)]
    assert len(batches) == 1


def test_validation_is_left_to_the_module_while_fitting():
    assert attach(data_of(), 0, 1).val_dataloader() == []
    parts = attach(data_of(), 0, 1, TrainerFn.VALIDATING).val_dataloader()
    assert sorted(t for part in parts for t in texts(part)) == list("uvwxyz")
    assert list(data_of(heldout="").test_dataloader()) == []


def test_batches_stay_where_they_are():
    data = data_of()
    batch = data.more(2)
    assert data.transfer_batch_to_device(batch, "meta", 0) is batch
    assert isinstance(batch, StepPrompts)


def test_refusals_name_field_and_fix(monkeypatch):
    for options, field in (({"prompts_per_step": 0}, "prompts_per_step"), ({"heldout_size": -1}, "heldout_size")):
        with pytest.raises(RecipeError, match=rf"data\.{field}"):
            PromptData(Addition(), **options)
    with pytest.raises(RecipeError, match=r"data\.source: Fixed leaves no prompt"):
        data_of("")
    monkeypatch.setattr(module, "all_objects", lambda value: [value, value + 1])
    with pytest.raises(RecipeError, match="other prompts in each process"):
        data_of()
    monkeypatch.setattr(module, "world_size", lambda: 4)
    with pytest.raises(RecipeError, match=r"data\.prompts_per_step: 3 prompts cannot be shared by 4"):
        data_of()


def test_equal_prompts_in_a_step_keep_their_own_positions():
    batch = data_of("a", per_step=3).more(3)
    assert (texts(batch), batch.positions) == (["a", "a", "a"], [0, 1, 2])


def test_without_held_out_data_nothing_of_the_training_data_is_evaluated(tmp_path):
    """Known fault B71: a part is split off, the same after a resume, or there is no evaluation."""
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"q{i}", "answer": str(i)}) + "\n" for i in range(20)))

    def splits(size, state=None):
        data = PromptData(Table(path=str(path)), prompts_per_step=4, heldout_size=size)
        if state is not None:
            data.load_state_dict(state)
        data.setup()
        return data, {p.text for p in data.train}, {p.text for p in data.heldout}

    data, train, held = splits(5)
    assert (len(train), len(held)) == (15, 5)
    assert train.isdisjoint(held)
    assert {t for _ in range(10) for t in texts(data.more(4))} == train
    assert splits(5, data.state_dict())[2] == held
    data, train, held = splits(0)
    assert (len(train), held, texts(data.heldout_share())) == (20, set(), [])
