"""The files that the rows of the fault matrix name, written into one folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from lit_group_rl.tiny import TINY_FOLDER

GOOD = [{"prompt": f"{i}+{i}=", "answer": str(2 * i)} for i in range(40)]
WITH_ONE = {
    "null": {"prompt": None, "answer": "1"},
    "number": {"prompt": "1+1=", "answer": 2},
    "list": {"prompt": ["1+1="], "answer": "2"},
    "long": {"prompt": "1+" * 100, "answer": "100"},
    "huge": {"prompt": "1+" * 15_000_000, "answer": "2"},
    "nul": {"prompt": "a\0", "answer": "1"},
    "surrogate": {"prompt": "\ud800", "answer": "1"},
}
"""Files of 44 good rows, and this as the fourth line."""
LINES = {
    "bad": b'{"prompt": "b", }',
    "twice": b'{"prompt": "b", "prompt": "c", "answer": "1"}',
    "latin": b'{"prompt": "b\xff", "answer": "1"}',
}
"""The same, for lines that no writer of JSON would write."""
YAML = {
    "duplicate": "steps: 3\nmodel:\n  minibatches: 1\n  minibatches: 2\n",
    "tab": "model:\n\tminibatches: 1\n",
    "latin": b"# caf\xe9\n",
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
}
REWARDS = """
def text(completions): return ["0.5" for _ in completions]
def nested(completions): return [[1.0] for _ in completions]
def one(completions): return [1.0]
def scalar(completions): return 1.0
def nothing(completions): return None
def asks(level, completions): return level
def position(completions, /): return []
"""


def write(folder: Path) -> None:
    """All files."""
    good = [json.dumps(row).encode() for row in GOOD]
    tables = {
        "empty": [],
        "few": good[:2],
        "blank": [b'{"prompt": " ", "answer": "1"}'] * 2,
        "named": [json.dumps({"prompts": r["prompt"], "answer": r["answer"]}).encode() for r in GOOD],
        "chat": [
            json.dumps({"prompt": [{"role": "user", "content": "1+1="}], "answer": str(i)}).encode() for i in range(1)
        ]
        + [json.dumps({"prompt": [{"role": "user", "content": r["prompt"]}], "answer": "1"}).encode() for r in GOOD],
    }
    bad = {name: json.dumps(row).encode() for name, row in WITH_ONE.items()} | LINES
    # four rows more than GOOD, so that 40 are left to train on when 4 are held out
    more = [json.dumps({"prompt": f"{i}+0=", "answer": str(i)}).encode() for i in range(40, 43)]
    tables |= {name: [*good[:3], line, *good[3:], *more] for name, line in bad.items()}
    for name, lines in tables.items():
        (folder / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    for name, content in YAML.items():
        (folder / f"{name}.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    (folder / "bad_rewards.py").write_text(REWARDS)
    (folder / "mine.py").write_text("class Foo: pass\n")
    _policies(folder)


def _policies(folder: Path) -> None:
    """The embedded policy, with one thing wrong in each copy."""
    from safetensors.torch import load_file, save_file

    def copy(name: str, **tokenizer: Any) -> Path:
        shutil.copytree(TINY_FOLDER, folder / name)
        if tokenizer:
            _change(folder / name / "tokenizer_config.json", **tokenizer)
        return folder / name

    copy("plain")
    copy("no_end", eos_token=None)
    copy("no_pad", pad_token=None)
    small = copy("small")
    weights = load_file(small / "model.safetensors")
    embedding = "model.embed_tokens.weight"
    rows = len(weights[embedding]) - 4
    save_file(weights | {embedding: weights[embedding][:rows].clone()}, small / "model.safetensors", {"format": "pt"})
    _change(small / "config.json", vocab_size=rows)
    broken = weights[embedding].clone()
    broken[3, 3] = torch.nan
    save_file(weights | {embedding: broken}, copy("nan") / "model.safetensors", {"format": "pt"})
    (folder / "labels").mkdir()
    labels = {"model_type": "llama", "id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}}
    (folder / "labels" / "config.json").write_text(json.dumps(labels))


def _change(path: Path, **values: Any) -> None:
    kept = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in kept.items() if v is not None}))
