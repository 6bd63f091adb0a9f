import json
import logging

import pytest

from lit_group_rl.data import HFDataset, Table
from lit_group_rl.types import RecipeError

GOOD = [{"prompt": f"q{i}", "answer": str(i), "level": i} for i in range(10)]


def write(path, content):
    if isinstance(content, list):
        content = "\n".join(json.dumps(row) for row in content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def load(tmp_path, content, name="mine.jsonl", heldout=0, **options):
    return Table(path=write(tmp_path / name, content), **options).load(heldout)


def refusal(tmp_path, content, name="mine.jsonl", heldout=0, **options):
    with pytest.raises(RecipeError) as error:
        load(tmp_path, content, name, heldout, **options)
    return str(error.value)


def test_columns_and_places(tmp_path):
    train, heldout = load(tmp_path, GOOD)
    assert heldout == []
    assert (train[3].text, train[3].answer, train[3].fields) == ("q3", "3", {"level": 3})
    assert train[3].place == "mine.jsonl line 4"


def test_blank_lines_bom_and_crlf_are_fine(tmp_path):
    train, _ = load(tmp_path, b'\xef\xbb\xbf{"prompt": "a", "answer": "1"}\r\n\r\n{"prompt": "b", "answer": "2"}\r\n')
    assert [(p.text, p.place) for p in train] == [("a", "mine.jsonl line 1"), ("b", "mine.jsonl line 3")]


def test_unusual_characters_are_kept(tmp_path):
    text = "\U0001f600 漢字 \u202eعربي \x1b[31m"
    assert load(tmp_path, [{"prompt": text, "answer": "1"}])[0][0].text == text


BAD_LINES = [
    (b'{"prompt": "b", }', ["line 2", "not JSON", "column 17"]),
    (b'{"prompt": "b", "prompt": "c", "answer": "1"}', ["line 2", "'prompt'", "twice"]),
    (b'{"prompt": "b\xff", "answer": "1"}', ["line 2", "not UTF-8", "0xff", "column 14"]),
    (b'["b"]', ["line 2", "list where an object is due"]),
    (b'{"prompt": "\\ud800", "answer": "1"}', ["line 2", "surrogate"]),
    (b'{"prompt": "a\\u0000", "answer": "1"}', ["line 2", "NUL", "position 2"]),
    (b'{"prompt": null, "answer": "1"}', ["line 2", "'prompt'", "NoneType"]),
    (b'{"prompt": "b", "answer": 7}', ["line 2", "'answer'", "int (7)", "number_to_text"]),
    (b'{"prompt": "b", "answer": ["7"]}', ["line 2", "'answer'", "list"]),
    (b'{"prompt": " ", "answer": "1"}', ["line 2", "'prompt' is empty"]),
    (b'{"prompt": [], "answer": "1"}', ["line 2", "role and content"]),
    (b'{"prompt": [{"role": "user"}], "answer": "1"}', ["line 2", "role and content"]),
    (
        b'{"prompts": "b", "answer": "1"}',
        ["line 2", "no column 'prompt'", "prompts, answer", "Did you mean 'prompts'?"],
    ),
    (b"[" * 100_000, ["line 2"]),
]


@pytest.mark.parametrize(("line", "words"), BAD_LINES)
def test_bad_lines_are_refused_by_place_or_skipped_and_counted(tmp_path, caplog, line, words):
    content = b'{"prompt": "a", "answer": "1"}\n' + line + b'\n{"prompt": "c", "answer": "3"}'
    message = refusal(tmp_path, content)
    for word in ["mine.jsonl", "on_bad_row: skip", *words]:
        assert word in message
    assert len(message) < 600
    with caplog.at_level(logging.WARNING):
        train, _ = load(tmp_path, content, on_bad_row="skip")
    assert [p.text for p in train] == ["a", "c"]
    assert "1 of 3 training rows are left out" in caplog.text


def test_a_huge_line_is_shown_short(tmp_path):
    assert len(refusal(tmp_path, b'{"prompt": "' + b"x" * 1_000_000)) < 600


def test_empty_data_are_refused(tmp_path):
    assert "have no rows" in refusal(tmp_path, "")
    message = refusal(tmp_path, '{"prompt": ""}\n{"prompt": ""}', on_bad_row="skip")
    assert "2 rows, none of which can be used; the first: mine.jsonl line 1" in message
    with pytest.raises(RecipeError, match=r"data\.source\.path: there is no file .*no\.jsonl"):
        Table(path=str(tmp_path / "no.jsonl")).load(0)
    assert "suffix .txt" in refusal(tmp_path, "x", name="mine.txt")


def test_numbers_are_written_out_when_asked(tmp_path):
    train, _ = load(tmp_path, [{"prompt": 5, "answer": 0.5}], number_to_text=True)
    assert (train[0].text, train[0].answer) == ("5", "0.5")
    assert "bool" in refusal(tmp_path, [{"prompt": "a", "answer": True}], number_to_text=True)


def test_chat_instruction_and_no_answer(tmp_path):
    rows = [{"prompt": "a"}, {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "b"}]}]
    train, _ = load(tmp_path, rows, answer=None, chat=True, instruction="Be short.")
    assert train[0].text == [{"role": "user", "content": "a\nBe short."}]
    assert train[1].text == [{"role": "system", "content": "s"}, {"role": "user", "content": "b\nBe short."}]
    assert train[0].answer is None
    assert load(tmp_path, rows, answer=None)[0][0].text == "a"


def test_held_out_texts_are_never_trained_on_and_do_not_depend_on_order(tmp_path):
    """Known fault B71, for data of one file."""
    rows = [*GOOD, {"prompt": "q1", "answer": "again"}, {"prompt": "q2", "answer": "again"}]
    train, heldout = load(tmp_path, rows, heldout=5)
    held = {p.text for p in heldout}
    assert len(heldout) == len(held) == 5
    assert held.isdisjoint(p.text for p in train)
    assert len(train) == 12 - sum(r["prompt"] in held for r in rows)
    assert {p.text for p in load(tmp_path, rows[::-1], heldout=5)[1]} == held
    assert "10 different prompts, so 10 cannot be held out" in refusal(tmp_path, rows, heldout=10)


def test_own_held_out_file(tmp_path, caplog):
    other = write(tmp_path / "test.jsonl", [GOOD[0], GOOD[1], {"prompt": "new", "answer": "1"}])
    with caplog.at_level(logging.WARNING):
        train, heldout = load(tmp_path, GOOD, heldout=2, heldout_path=other)
    assert [p.text for p in heldout] == ["q0", "q1"]
    assert [p.text for p in train] == [f"q{i}" for i in range(2, 10)]
    assert "2 training prompts are also held out" in caplog.text


def test_json_array(tmp_path):
    assert load(tmp_path, json.dumps(GOOD), "mine.json")[0][9].place == "mine.json item 10"
    assert "must be named .jsonl" in refusal(tmp_path, GOOD, "mine.json")
    assert "line 1 column 2" in refusal(tmp_path, "[", "mine.json")
    assert "dict where an array" in refusal(tmp_path, "{}", "mine.json")
    assert "'a' stands twice" in refusal(tmp_path, '[{"a": 1, "a": 2}]', "mine.json")
    assert "line 2: not UTF-8: byte 0xff" in refusal(tmp_path, b"[\n\xff]", "mine.json")


def test_csv(tmp_path):
    train, _ = load(tmp_path, '\ufeffprompt,answer,level\n"a, b",1,x\n"c\nd",2,y\n', "mine.csv")
    assert [(p.text, p.answer, p.fields) for p in train] == [
        ("a, b", "1", {"level": "x"}),
        ("c\nd", "2", {"level": "y"}),
    ]
    assert "mine.csv line 2: 3 fields where 2 are due" in refusal(tmp_path, "prompt,answer\na,1,2\n", "mine.csv")
    assert "mine.csv line 2: 1 fields where 2 are due" in refusal(tmp_path, "prompt,answer\na\n", "mine.csv")
    assert "'prompt' stands there twice" in refusal(tmp_path, "prompt,prompt\na,1\n", "mine.csv")
    assert "Did you mean 'Prompt'?" in refusal(tmp_path, "Prompt,answer\na,1\n", "mine.csv")
    assert "no rows" in refusal(tmp_path, "", "mine.csv")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "mine.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(GOOD), path)
    train, _ = Table(path=str(path)).load(0)
    assert (train[9].text, train[9].answer, train[9].place) == ("q9", "9", "mine.parquet row 10")
    assert "not a readable Parquet file" in refusal(tmp_path, "no", "bad.parquet")


def test_saved_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")
    parts = {"train": datasets.Dataset.from_list(GOOD), "test": datasets.Dataset.from_list(GOOD[:2])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    train, heldout = HFDataset(name=str(tmp_path / "saved"), heldout_split="test").load(5)
    assert [p.text for p in heldout] == ["q0", "q1"]
    assert [p.text for p in train] == [f"q{i}" for i in range(2, 10)]
    with pytest.raises(RecipeError, match=r"no split 'tests'.*Did you mean 'test'"):
        HFDataset(name=str(tmp_path / "saved"), split="tests").load(1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecipeError, match=r"data\.source\.name: cannot load .*Empty"):
        HFDataset(name=str(tmp_path / "empty")).load(1)


def test_a_folder_with_a_file_per_split_is_read_with_places(tmp_path):
    write(tmp_path / "train.jsonl", GOOD)
    write(tmp_path / "test.csv", "prompt,answer\nnew,1\n")
    source = HFDataset(name=str(tmp_path), config="main", heldout_split="test")
    train, heldout = source.load(5)
    assert (train[9].text, train[9].place) == ("q9", "train.jsonl line 10")
    assert [(p.text, p.place) for p in heldout] == [("new", "test.csv line 2")]
    write(tmp_path / "train.jsonl", [GOOD[0], {"prompt": "b", "answr": "1"}])
    with pytest.raises(RecipeError, match=r"train\.jsonl line 2: no column 'answer'.*Did you mean 'answr'\?"):
        source.load(5)


def test_a_name_of_the_hub_without_network_is_told_what_to_do(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def unreachable(*args, **options):
        asked.append((args, options))
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(RecipeError, match=r"data\.source\.name: cannot load 'a/b'.*without network needs a folder"):
        HFDataset(name="a/b", config="main", revision="abc", split="train").load(1)
    assert asked == [(("a/b", "main"), {"split": "train", "revision": "abc"})]


def test_columns_inside_of_columns(tmp_path):
    # the form of verl's Parquet files
    rows = [{"prompt": [{"role": "user", "content": "1+1?"}], "reward_model": {"ground_truth": "2", "style": "rule"}}]
    train, _ = load(tmp_path, rows, answer="reward_model.ground_truth")
    assert (train[0].text[0]["content"], train[0].answer) == ("1+1?", "2")
    assert train[0].fields["reward_model"]["style"] == "rule"
    assert "no column 'reward_model.gold'" in refusal(tmp_path, rows, answer="reward_model.gold")


def test_columns_of_other_names_are_suggested(tmp_path):
    message = refusal(tmp_path, [{"messages": [{"role": "user", "content": "a"}], "gold": "1"}])
    assert "Did you mean 'messages'? Set data.source.prompt" in message
    assert "Did you mean 'gold'?" in refusal(tmp_path, [{"prompt": "a", "gold": "1"}])
    # the prompt's own column is no suggestion for the answer
    assert "Did you mean" not in refusal(tmp_path, [{"solution": "a"}], prompt="solution")


def test_the_answer_behind_a_mark(tmp_path):
    rows = [{"prompt": "a", "answer": "6*7 = 42 #### no\n#### 42 "}]
    assert load(tmp_path, rows, answer_after="####")[0][0].answer == "42"
    for answer in ("42", "42 ####", "42 #### "):
        message = refusal(tmp_path, [{"prompt": "a", "answer": answer}], answer_after="####")
        assert "mine.jsonl line 1: the answer has nothing behind '####'" in message
        assert "or empty data.source.answer_after" in message
