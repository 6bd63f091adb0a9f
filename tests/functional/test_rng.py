import random

import numpy as np
import torch

from lit_group_rl.functional.rng import normals, seed_of, seeded, uniforms


def test_a_seed_is_a_function_of_what_it_is_for() -> None:
    assert seed_of(1, "sample", 3) == seed_of(1, "sample", 3)
    assert len({seed_of(1, "sample", k) for k in range(100)} | {seed_of(2, "sample", k) for k in range(100)}) == 200
    assert seed_of(1, 23) != seed_of(12, 3)
    assert 0 <= seed_of("x") < 2**63


def test_a_draw_depends_on_its_key_and_place_only() -> None:
    whole = uniforms([5, 9, 7], 0, 20)
    assert torch.equal(uniforms([9], 0, 20)[0], whole[1])
    assert torch.equal(uniforms([7, 5], 12, 4), whole[[2, 0], 12:16])
    assert ((whole >= 0) & (whole < 1)).all()


def test_uniforms_have_the_moments_of_the_uniform_law() -> None:
    u = uniforms(list(range(200)), 0, 500)  # n = 1e5: standard errors of the mean 9.1e-4, of the variance 2.4e-4
    assert abs(u.mean().item() - 0.5) < 4 * 9.2e-4
    assert abs(u.var().item() - 1 / 12) < 4 * 2.4e-4
    # neighbours in key and in place are uncorrelated: standard error of a correlation is 1 / sqrt(1e5) = 3.2e-3
    assert abs(np.corrcoef(u[:-1].flatten(), u[1:].flatten())[0, 1]) < 4 * 3.2e-3
    assert abs(np.corrcoef(u[:, :-1].flatten(), u[:, 1:].flatten())[0, 1]) < 4 * 3.2e-3


def test_normals_have_the_moments_of_the_normal_law() -> None:
    z = normals(list(range(200)), 500)
    assert z.isfinite().all()
    assert abs(z.mean().item()) < 4 * 3.2e-3
    assert abs(z.var().item() - 1) < 4 * 4.5e-3  # sqrt(2 / n)
    assert abs((z**4).mean().item() - 3) < 4 * 3.1e-2  # sqrt(96 / n)


def test_seeded_repeats_itself_and_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    expected = torch.rand(1).item(), random.random(), np.random.rand()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    draws = []
    for key in (1, 1, 2):
        with seeded("block", key):
            draws.append((torch.rand(1).item(), random.random(), float(np.random.rand())))
    assert draws[0] == draws[1] != draws[2]
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected
