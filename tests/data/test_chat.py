"""Conversations of a file, from the row to the tokens that the policy goes on from."""

import json

import pytest

from lit_group_rl.cli import catalog
from lit_group_rl.cli.compose import compose, options_of
from lit_group_rl.data import Table
from lit_group_rl.policy import HFPolicy
from lit_group_rl.types import RecipeError

ROWS = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "level": 1},
    {"messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
        {"role": "assistant", "content": "f"},
    ], "level": 2},
]  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<{{ m['role'][0] }}>{{ m['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def source(tmp_path, rows, **options):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return Table(**options_of(compose(["grpo", "data/chat"]).at("data.source")) | {"path": str(path), **options})


def refusal(tmp_path, rows, **options):
    with pytest.raises(RecipeError) as error:
        source(tmp_path, rows, **options).load(0)
    return str(error.value)


@pytest.fixture(scope="module")
def policy():
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", *"<>abcdefsu"])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    made.decoder = decoders.Fuse()
    policy = HFPolicy("my-model")
    policy.tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<eos>", pad_token="<pad>")
    policy.tokenizer.chat_template = TEMPLATE
    return policy


def test_the_last_message_is_the_answer_and_the_template_opens_the_next(tmp_path, policy):
    train, _ = source(tmp_path, ROWS).load(0)
    assert [p.answer for p in train] == ["b", "f"]
    assert [p.fields for p in train] == [{"level": 1}, {"level": 2}]
    texts = [policy.decode([policy.encode(p)])[0] for p in train]
    assert texts == ["<u>a<a>", "<s>s<u>c<a>d<u>e<a>"]


def test_an_answer_column_beside_the_messages(tmp_path, policy):
    rows = [{"messages": ROWS[0]["messages"][:1], "gold": "b"}]
    train, _ = source(tmp_path, rows, answer="gold").load(0)
    assert (train[0].answer, policy.decode([policy.encode(train[0])])[0]) == ("b", "<u>a<a>")
    message = refusal(tmp_path, [{**ROWS[0], "gold": "b"}], answer="gold")
    assert "mine.jsonl line 1: the messages in 'messages' end with the assistant's" in message
    assert "Set data.source.answer to messages" in message


def test_a_conversation_without_an_answer_is_refused(tmp_path):
    message = refusal(tmp_path, [ROWS[0], {"messages": ROWS[0]["messages"][:1]}])
    assert "mine.jsonl line 2: data.source.answer is 'messages', but no answer of the assistant ends" in message
    assert "is empty" in refusal(tmp_path, [{"messages": ROWS[0]["messages"][1:]}])


def test_messages_that_the_template_refuses_are_told_by_place(tmp_path, policy):
    rows = [{"messages": [{"role": "tool", "content": "a"}, {"role": "user", "content": "b"}]}]
    train, _ = source(tmp_path, rows, answer=None).load(0)
    with pytest.raises(RecipeError) as error:
        policy.encode(train[0])
    assert "mine.jsonl line 1 with the roles tool, user: no tools here." in str(error.value)


def test_parquet_gives_the_same_conversations(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "mine.parquet")
    lines, _ = source(tmp_path, ROWS).load(0)
    columns, _ = source(tmp_path, ROWS, path=str(tmp_path / "mine.parquet")).load(0)
    assert [(p.text, p.answer, p.fields) for p in columns] == [(p.text, p.answer, p.fields) for p in lines]


def test_the_overlays_for_own_files_say_how_a_row_looks():
    for name in ("data/jsonl", "data/chat"):
        head = catalog.files("configs")[name].read_text(encoding="utf-8").partition("\nmodel:")[0]
        assert '{"' in head
