"""Turns and replies put together, with a policy that says what it is told to say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from lit_group_rl.drawn import Drawn, StopTexts
from lit_group_rl.environments import Calculator, Environment
from lit_group_rl.environments.episode import play
from lit_group_rl.samplers import GreedyRowSampler, GroupSampler
from lit_group_rl.schedules import Clock
from lit_group_rl.tiny import CharPolicy
from lit_group_rl.types import BASELINE, Prompt, RecipeError

CLOCK = Clock(0, 1)
END = "$"
"""Stands for the end token in a script."""


@pytest.fixture(scope="module")
def policy() -> CharPolicy:
    policy = CharPolicy(hidden_size=16, layers=1, heads=2)
    policy.load()
    return policy


@dataclass
class Script:
    """``generate`` that gives the turns of each row in order; a token's log-prob is minus its id."""

    policy: CharPolicy
    rows: list[list[str]]
    asked: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, prompts: Any, **options: Any) -> Drawn:
        self.asked.append({"prompts": prompts, **options})
        said = [row.pop(0) for row in self.rows if row]
        rows = [[self.policy.tokenizer.eos_token_id if c == END else self.id(c) for c in text] for text in said]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in rows])
        ended = torch.tensor([text[-1] in (END, ">") for text in said])
        return Drawn(ids, mask, -ids.float() * mask, 0.5 * mask, ~ended, True)

    def id(self, character: str) -> int:
        return int(self.policy.tokenizer.convert_tokens_to_ids(character))


def episodes(policy, rows, environment=None, prompts=("2+3=",), copies=1, limit=20) -> tuple[Drawn, Script]:
    script = Script(policy, [list(row) for row in rows])
    drawn = play(
        script,
        policy,
        environment or Calculator(),
        [Prompt(p) for p in prompts],
        copies=copies,
        keys=list(range(len(rows))),
        max_new_tokens=limit,
        temperature=1.0,
    )
    return drawn, script


def test_two_turns_with_a_reply_between_them(policy):
    drawn, script = episodes(policy, [["a<2+3>", "b$"]])
    # a < 2 + 3 > | 5 | b end
    assert policy.decode(drawn.ids.tolist()) == ["a<2+3>5b"]
    assert drawn.written.int().tolist() == [[1, 1, 1, 1, 1, 1, 0, 1, 1]]
    assert drawn.mask.all()
    assert drawn.truncated.tolist() == [False]
    assert drawn.turns == [("a<2+3>", "b")]
    assert drawn.exact
    # the sampler's numbers stand where the policy wrote, and nothing where it did not
    assert torch.equal(drawn.logp, torch.where(drawn.written, -drawn.ids.float(), 0.0))
    assert drawn.entropy.tolist() == [[0.5] * 6 + [0.0] + [0.5] * 2]
    # the second turn was drawn behind the question, the first turn and the reply, with what was left of 20 tokens
    assert script.asked[1]["prompts"] == [[script.id(c) for c in "2+3=a<2+3>5"]]
    assert [a["max_new_tokens"] for a in script.asked] == [20, 14]
    assert script.asked[0]["stops"] == (">",)


def test_rows_of_different_length_and_number_of_turns(policy):
    drawn, script = episodes(policy, [["7$"], ["<10>", "<1/0>", "9$"]], copies=2)
    assert policy.decode([r[:n] for r, n in zip(drawn.ids.tolist(), drawn.mask.sum(1).tolist(), strict=True)]) == [
        "7",
        "<10>10<1/0>?9",
    ]
    # < 1 0 > 1 0 < 1 / 0 > ? 9 end
    assert drawn.written[1].int().tolist() == [1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1]
    assert drawn.mask.sum(1).tolist() == [2, 14]
    assert not (drawn.written & ~drawn.mask).any()
    # the first turns of a group come from one prompt, later turns are rows of their own
    assert len(script.asked[0]["prompts"]) == 1
    assert script.asked[0]["copies"] == 2
    assert script.asked[1]["copies"] == 1


def test_every_turn_has_a_key_of_its_own(policy):
    _, script = episodes(policy, [["<1>", "<2>", "3$"]])
    keys = [a["keys"][0] for a in script.asked]
    assert keys[0] == 0, "the first turn is drawn as without an environment"
    assert len(set(keys)) == 3


def test_the_policys_own_tokens_are_limited_over_all_turns(policy):
    # 4 + 3 = 7 tokens: of the second turn three are left, the reply does not count
    drawn, _ = episodes(policy, [["<10>", "abcdef$"]], limit=7)
    assert policy.decode(drawn.ids.tolist()) == ["<10>10abc"]
    assert drawn.truncated.tolist() == [True]
    assert int(drawn.written.sum()) == 7
    # a call that uses them up is not answered
    drawn, _ = episodes(policy, [["<10>"]], limit=4)
    assert policy.decode(drawn.ids.tolist()) == ["<10>"]
    assert drawn.truncated.tolist() == [True]


def test_the_last_turn_is_not_answered(policy):
    drawn, _ = episodes(policy, [["<1>", "<2>"]], Calculator(max_turns=2))
    assert policy.decode(drawn.ids.tolist()) == ["<1>1<2>"]
    assert drawn.truncated.tolist() == [True]
    assert drawn.turns == [("<1>", "<2>")]


def test_a_long_reply_is_cut(policy):
    drawn, _ = episodes(policy, [["<99999*99999>", "$"]], Calculator(max_reply_tokens=3))
    assert policy.decode(drawn.ids.tolist()) == ["<99999*99999>999"]  # 9999800001
    assert drawn.written[0].int().tolist() == [1] * 13 + [0] * 3 + [1]


@dataclass(frozen=True)
class Shopkeeper(Environment):
    """Answers end tokens, three words and no more; notes what it was shown."""

    seen: list = field(default_factory=list)

    def reply(self, turns):
        self.seen.extend(turns)
        return [None if t.number == 1 else " yes?" for t in turns]


def test_an_environment_may_answer_an_end_token_and_end_the_episode(policy):
    keeper = Shopkeeper()
    drawn, script = episodes(policy, [["tea$", "two$"]], keeper)
    assert drawn.truncated.tolist() == [False]
    assert drawn.written[0].int().tolist() == [1] * 4 + [0] * 5 + [1] * 4
    assert script.asked[1]["prompts"][0][-6] == policy.tokenizer.eos_token_id
    first, second = keeper.seen
    assert (first.text, first.said, first.number, first.ended) == ("tea", "tea", 0, True)
    assert (second.text, second.said, second.number) == ("tea<eos> yes?two", "two", 1)
    assert first.seed != second.seed


def test_replies_of_the_wrong_number_or_kind_are_refused(policy):
    class Broken(Shopkeeper):
        def reply(self, turns):
            return [42]

    with pytest.raises(RecipeError, match=r"model.sampler.environment: Broken.reply must give 1 texts.*int"):
        episodes(policy, [["a$"]], Broken())


def test_stop_texts_of_several_tokens_end_a_row_with_their_last_token(policy):
    stops = StopTexts.of(policy.tokenizer, ("</a>", "!"), policy.device)
    ids = policy.tokenizer("b</a>").input_ids
    assert [stops.end(ids[:n]) for n in range(1, 6)] == [False, False, False, False, True]
    assert set(policy.tokenizer.convert_ids_to_tokens(stops.candidates.tolist())) == {">", "!"}, "not <pad> or <eos>"


def test_the_sampler_gives_the_same_batch_for_any_company(policy):
    """Random weights call the tool now and then; what a row becomes is a function of its own key."""
    sampler = GroupSampler(group_size=24, max_new_tokens=12, temperature=2.0, environment=Calculator())
    prompts = [Prompt("2+3=", "5"), Prompt("70+8=", "78")]
    both = sampler.sample(policy, prompts, [0, 1], CLOCK, 5)
    alone = sampler.sample(policy, prompts[1:], [1], CLOCK, 5)
    assert [s.completion for s in both.samples[24:]] == [s.completion for s in alone.samples]
    assert max(len(s.turns) for s in both.samples) > 1
    assert torch.equal(both.mask, both.written)
    assert [s.num_tokens for s in both.samples] == both.written.sum(1).tolist() == both.own_lengths.tolist()
    assert (both.lengths >= both.own_lengths).all()
    numbers = both.metrics.reduce()
    assert numbers["episode/turns"] == sum(len(s.turns) for s in both.samples) / 48
    assert numbers["episode/reply_tokens"] == float((both.lengths - both.own_lengths).sum()) / 48


def test_greedy_rows_and_held_out_prompts_meet_the_environment_too(policy, monkeypatch):
    seen = []
    monkeypatch.setattr(Calculator, "reply", lambda self, turns: seen.extend(turns) or [None] * len(turns))
    sampler = GreedyRowSampler(group_size=2, max_new_tokens=6, environment=Calculator())
    batch = sampler.sample(policy, [Prompt("2+3=", "5")], [0], CLOCK, 1)
    assert batch.row_role.tolist()[-1] == BASELINE
    assert batch.written is not None

    from lit_group_rl.data.module import StepPrompts
    from lit_group_rl.evaluation import HeldOut

    assert HeldOut().greedy(policy, sampler, StepPrompts([Prompt("2+3=", "5")], [0])).written is not None


def test_the_room_of_a_completion_counts_the_replies():
    assert GroupSampler(max_new_tokens=10).longest == 10
    # three replies between four turns
    assert GroupSampler(max_new_tokens=10, environment=Calculator(max_turns=4, max_reply_tokens=5)).longest == 25
