import math

import torch

from lit_group_rl.functional.masked import masked_mean, masked_std, masked_sum

VALUES = torch.tensor([[1.0, 2.0, float("nan")], [6.0, float("inf"), 3.0]])
MASK = torch.tensor([[True, True, False], [True, False, False]])


def test_what_lies_under_false_has_no_part() -> None:
    assert masked_sum(VALUES, MASK).item() == 9  # 1 + 2 + 6
    assert masked_sum(VALUES, MASK, dim=1).tolist() == [3, 6]
    assert masked_mean(VALUES, MASK).item() == 3
    assert masked_mean(VALUES, MASK, dim=1).tolist() == [1.5, 6]
    assert masked_std(VALUES, MASK).item() == torch.tensor(math.sqrt(7)).item()  # (4 + 1 + 9) / 2


def test_nothing_to_count_gives_zero_not_nan() -> None:
    empty = torch.zeros_like(MASK)
    assert masked_mean(VALUES, empty).item() == 0
    assert masked_mean(VALUES, empty, dim=1).tolist() == [0, 0]
    assert masked_std(VALUES, empty).item() == 0


def test_no_gradient_reaches_what_lies_under_false() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    masked_mean(values, torch.tensor([[True, False, True]])).backward()
    assert values.grad.tolist() == [[0.5, 0, 0.5]]
