import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lit_group_rl.data import ALPHABET, Addition, Copy, Maximum, Mixture, Parentheses, Reverse, Sort
from lit_group_rl.types import RecipeError

TASKS = [Addition, Copy, Maximum, Parentheses, Reverse, Sort]


@pytest.mark.parametrize(
    ("task", "number", "prompt", "answer"),
    [
        # numbers of two digits are 10..99, so 14 * 90 + 43 is 24 and 53
        (Addition(level=2), 14 * 90 + 43, "24+53=", "77"),
        (Addition(level=1), 97, "9+7=", "16"),
        # a..z are 0..25, the first letter counts ones: abc = 0 + 1 * 26 + 2 * 676
        (Copy(level=3), 26 + 2 * 676, "c:abc=", "abc"),
        (Reverse(level=3), 26 + 2 * 676, "r:abc=", "cba"),
        # 31, 94, 28 are 21, 84, 18 above 10: 21 + 84 * 90 + 18 * 8100
        (Maximum(level=3), 21 + 84 * 90 + 18 * 8100, "m:31,94,28=", "94"),
        (Sort(level=4), 2913, "s:3192=", "1239"),
    ],
)
def test_item(task, number, prompt, answer):
    assert task.item(number) == (prompt, answer)


@pytest.mark.parametrize(
    ("level", "space"),
    [
        # kinds k = 3; level 2: two opened (k*k), the pair () leaves nothing open: 9
        (2, 9),
        # level 3: ooo 27, ooc 9, oco 9; level 4: oooo 81, oooc 27, ooco 27, ocoo 27
        (3, 45),
        (4, 162),
    ],
)
def test_space_of_parentheses(level, space):
    task = Parentheses(level=level)
    assert task.space == space
    assert len({task.item(n)[0] for n in range(space)}) == space


@given(st.integers(2, 16), st.data())
def test_parentheses_close_what_is_open(level, data):
    task = Parentheses(level=level)
    prompt, answer = task.item(data.draw(st.integers(0, task.space - 1)))
    text = prompt[2:-1] + answer
    assert len(prompt) == level + 3
    assert answer
    while text != (shorter := text.replace("()", "").replace("[]", "").replace("{}", "")):
        text = shorter
    assert text == ""


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_distinct_repeatable_and_in_the_alphabet(task):
    train, heldout = task().load(100)
    again, heldout_again = task().load(100)
    assert (train, heldout) == (again, heldout_again)
    texts, held = {p.text for p in train}, {p.text for p in heldout}
    assert len(texts) == len(train)
    assert len(held) == 100
    assert not texts & held
    assert set("".join(p.text + p.answer for p in train + heldout)) <= set(ALPHABET)
    assert all(p.place for p in train)


@pytest.mark.parametrize("task", TASKS)
def test_held_out_prompts_do_not_depend_on_train_size(task):
    assert task(train_size=5).load(50)[1] == task(train_size=3000).load(50)[1]
    assert len(task(train_size=5).load(50)[0]) == 5
    assert task(content_seed=1).load(50)[1] != task(content_seed=0).load(50)[1]


@pytest.mark.parametrize("task", TASKS)
def test_no_single_answer_pays(task):
    answers = [p.answer for p in task().load(0)[0]]
    assert max(map(answers.count, set(answers[:200]))) / len(answers) < 0.05


def test_alphabet_fits_the_tokenizer():
    assert len(set(ALPHABET)) == len(ALPHABET) <= 64


def test_a_small_space_gives_what_is_left_or_is_refused():
    train, heldout = Addition(level=1).load(60)
    assert (len(train), len(heldout)) == (40, 60)
    with pytest.raises(RecipeError, match=r"heldout_size: Addition at level 1 has only 100 different prompts"):
        Addition(level=1).load(100)


@pytest.mark.parametrize(("task", "level"), [(Addition, 0), (Addition, 10), (Parentheses, 1), (Maximum, 1), (Copy, 13)])
def test_levels_out_of_range_are_refused(task, level):
    with pytest.raises(ValueError, match=r"level must lie in"):
        task(level=level)


@pytest.mark.parametrize("task", TASKS)
def test_the_hardest_level_loads(task):
    assert len(task(level=task.levels[1], train_size=10).load(10)[0]) == 10


def test_hash_seed_changes_nothing():
    code = (
        "from lit_group_rl.data import *\n"
        "from lit_group_rl.functional.rng import seed_of\n"
        "print([seed_of(t(train_size=50).load(20)) for t in (Addition, Copy, Maximum, Parentheses, Reverse, Sort)])"
    )
    outs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outs) == 1


def test_mixture_keeps_its_shares():
    mixture = Mixture({"sum": Addition(train_size=900), "copy": Copy(train_size=900)}, {"sum": 3, "copy": 1})
    train, heldout = mixture.load(40)
    assert [p.fields["source"] for p in heldout].count("sum") == 30
    # every copy is used once: 900 are 1/4 of 3600, so the 900 sums come three times
    assert [p.fields["source"] for p in train].count("copy") == 900
    assert [p.fields["source"] for p in train].count("sum") == 2700


def test_mixture_of_overlapping_sources_never_trains_on_what_it_holds_out():
    sources = {"a": Addition(level=1), "b": Addition(level=1, content_seed=1)}
    train, heldout = Mixture(sources).load(60)
    held = [p.text for p in heldout]
    assert len(set(held)) == len(held)
    assert not set(held) & {p.text for p in train}


def test_mixture_refuses_weights_that_name_other_sources():
    with pytest.raises(ValueError, match="must name exactly the sources"):
        Mixture({"a": Addition()}, {"b": 1.0})
