"""Each fault of a file is refused with its line; what a loose loader would change is kept."""

import pytest

from lit_group_rl.cli import strict_yaml
from lit_group_rl.cli.refusal import Place, Refusal


def load(tmp_path, content):
    path = tmp_path / "r.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return strict_yaml.load(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"steps: 1\nmodel:\n  a: 1\n  b: 2\n  a: 3\n", ["model.a", "twice", "line 3", "line 5"]),
        (b"model: {a: 1, a: 2}\n", ["model.a", "twice", "line 1"]),
        # 'steps: 3\n' is 9 bytes, '# caf' 5 more
        (b"steps: 3\n# caf\xe9\n", ["UTF-8", "byte 14", "line 2"]),
        (b"model:\n\ta: 1\n", ["tab", "line 2"]),
        (b"model: {a: [1, 2}\n", ["expected ',' or ']'", "line 1"]),
        (b"a: 1\nmodel:\n  lr: .nan\n", ["model.lr", ".nan", "line 3"]),
        (b"model:\n  lr: -.inf\n", ["model.lr", "-.inf", "line 2"]),
        # YAML takes these for text, a parser of floats would not
        (b"lr: nan\n", ["lr", "nan", "line 1"]),
        (b"lr: Infinity\n", ["lr", "Infinity", "line 1"]),
        # 1e999 overflows to infinity
        (b"lr: 1e999\n", ["lr", "1e999", "line 1"]),
        (b"a: &x 1\nb: *x\n", ["anchors", "line 2"]),
        (b"a: !!python/object:os.system x\n", ["constructor", "line 1"]),
        (b"- a\n- b\n", ["list"]),
        (b"a: 1\n\x00\n", ["control character", "line 2"]),
        (b"? [a, b]\n: 1\n", ["plain word", "line 1"]),
        (b"[" * 5000, ["nested too deeply"]),
    ],
)
def test_faults_are_refused_with_their_line(tmp_path, content, said):
    with pytest.raises(Refusal) as refused:
        load(tmp_path, content)
    assert all(word in str(refused.value) for word in said), str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6),
        ("1E-06", 1e-6),
        ("3.0e-6", 3e-6),
        ("-2", -2),
        ("no", False),
        ("null", None),
        ("'nan'", "nan"),
        ("'1e-6'", "1e-6"),
        ("FixedClip", "FixedClip"),
        ("[1, 2]", [1, 2]),
    ],
)
def test_values_mean_what_they_say(tmp_path, text, value):
    loaded, _ = load(tmp_path, f"a: {text}\n")
    assert loaded == {"a": value}
    assert type(loaded["a"]) is type(value)


def test_every_key_knows_its_line(tmp_path):
    _, places = load(tmp_path, "a: 1\nb:\n  c:\n    - {d: 2}\n")
    file = str(tmp_path / "r.yaml")
    assert places == {
        ("a",): Place(file, 1),
        ("b",): Place(file, 2),
        ("b", "c"): Place(file, 3),
        ("b", "c", "0", "d"): Place(file, 4),
    }


def test_an_empty_file_and_a_byte_order_mark_are_fine(tmp_path):
    assert load(tmp_path, b"")[0] == {}
    assert load(tmp_path, b"\xef\xbb\xbfsteps: 2\n")[0] == {"steps": 2}


def test_option_values_are_yaml_or_else_the_text_itself():
    assert strict_yaml.value_of("3e-5", "x") == 3e-5
    assert strict_yaml.value_of("{class_path: A}", "x") == {"class_path": "A"}
    assert strict_yaml.value_of("^a: {b", "x") == "^a: {b"
    with pytest.raises(Refusal, match=r"^model.lr: nan"):
        strict_yaml.value_of("nan", "model.lr")
