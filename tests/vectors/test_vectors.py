"""Every reference vector against the component that it describes.

The numbers come from an independent implementation in plain numpy, most of them cross-checked against other libraries
(``cross_check`` of each vector); the components only ever see their inputs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.vectors import models, notes, published_rollout, published_terms, published_update

FILE = json.loads((Path(__file__).parent / "algorithms.json").read_text())
VECTORS = {v["id"]: v for v in FILE["vectors"]}
BINDINGS = published_rollout.BINDINGS | published_update.BINDINGS | published_terms.BINDINGS
BINDINGS |= notes.BINDINGS | models.BINDINGS


def compare(name: str, actual: Any, expected: Any) -> None:
    if isinstance(expected, list) and expected and isinstance(expected[0], dict):
        assert len(actual) == len(expected)
        for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert a.keys() == e.keys()
            for key in e:
                compare(f"{name}[{k}].{key}", a[key], e[key])
        return
    if isinstance(expected, list) and expected and isinstance(expected[0], str):
        assert actual == expected
        return
    actual = torch.as_tensor(actual, dtype=torch.float64).detach()
    wanted = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, wanted, **FILE["conventions"]["tolerance"], msg=lambda m: f"{name}: {m}")


@pytest.mark.parametrize("name", VECTORS)
def test_vector(name: str) -> None:
    vector = VECTORS[name]
    result = BINDINGS[vector["component"]](vector)
    assert vector["expected"].keys() <= result.keys()
    for key, expected in vector["expected"].items():
        compare(key, result[key], expected)


def test_every_vector_is_bound() -> None:
    assert {v["component"] for v in VECTORS.values()} == BINDINGS.keys()
