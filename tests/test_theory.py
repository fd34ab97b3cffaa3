import math

import pytest
import torch

from rlploss import theory
from rlploss.loss.subsets import balanced_subsets


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def within(estimate, value, errors=4.0):
    """Whether a value lies within so many standard errors of an estimate."""
    return abs(estimate.mean - value) <= errors * estimate.error


@pytest.mark.parametrize("distribution", theory.DISTRIBUTIONS)
def test_features_have_mean_zero_and_variance_one(distribution):
    x = theory.draw_features(distribution, 400_000, 2, generator=generator())
    assert x.mean(0).abs().max() < 0.01
    assert (x.var(0) - 1).abs().max() < 0.05


def test_skewed_features_are_mostly_small_and_positive():
    x = theory.draw_features("skewed", 10_000, 1, generator=generator())
    assert (x > 0).double().mean() > 0.98
    assert x.min() < -9
    assert len(x.unique()) > 9_990  # continuous: no two columns are ever collinear


@pytest.mark.parametrize(("d", "M"), [(1, 6), (2, 9), (5, 16), (4, 40)])
def test_noise_floor_is_the_formula_for_gaussian_features(d, M):
    measured = theory.measure_noise_floor(d, M, noise=1.5, generator=generator(M))
    assert within(measured, theory.noise_floor(d, M, 1.5))
    assert measured.error < 0.1 * measured.mean


def test_noise_floor_scales_with_the_noise_and_is_zero_without():
    assert theory.noise_floor(3, 10, 2.0) == 4.0 * theory.noise_floor(3, 10)
    silent = theory.measure_noise_floor(3, 10, noise=0.0, n_subsets=50, generator=generator())
    assert silent.mean == 0.0


def test_noise_floor_is_infinite_at_the_papers_smallest_subset():
    assert theory.noise_floor(3, 4) == math.inf
    assert theory.noise_floor(3, 5) == 3.0
    # Means of ever more draws do not settle: the largest single draw keeps a visible share of the
    # sum.
    small = theory.measure_noise_floor(3, 4, n_subsets=50_000, generator=generator(1))
    finite = theory.measure_noise_floor(3, 12, n_subsets=50_000, generator=generator(1))
    assert small.error / small.mean > 10 * finite.error / finite.mean


def test_the_regression_function_minimises_and_the_excess_is_quadratic():
    def bend(scale):
        return lambda x: scale * (x[:, 0] + x[:, 1] ** 2)

    one, two = (
        theory.measure_valley(bend(scale), 2, 12, at=(1.0,), generator=generator(3)).rises[1.0]
        for scale in (1.0, 2.0)
    )
    assert one.mean > 10 * one.error
    assert two.mean == pytest.approx(4.0 * one.mean)
    none = theory.measure_valley(lambda x: 0.0 * x[:, 0], 2, 12, generator=generator(3))
    assert none.rises[1.0].mean == 0.0
    assert math.isnan(none.lowest.mean)


@pytest.mark.parametrize("seed", range(5))
def test_a_linear_deviation_without_noise_costs_what_its_planes_say(seed):
    """δ = 2x₀ is its own plane in every subset: a probe z sees (2t·z₀)², 4t² in the mean."""
    rises = theory.measure_valley(
        lambda x: 2.0 * x[:, 0], 3, 8, at=(0.5, 1.0, -1.0), generator=generator(seed)
    ).rises
    for t, exact in ((0.5, 1.0), (1.0, 4.0), (-1.0, 4.0)):
        assert within(rises[t], exact)
        assert rises[t].error == pytest.approx(exact * math.sqrt(2.0 / 20_000), rel=0.1)


def test_with_noisy_labels_the_valley_is_lowest_at_the_regression_function_and_nowhere_else():
    def noise(x):
        return 0.5 + x[:, 0].abs()

    def bend(x):
        return x[:, 0] + x[:, 1] ** 2

    valley = theory.measure_valley(bend, 2, 12, at=(-0.5, 0.5), noise=noise, generator=generator(4))
    assert within(valley.lowest, 0.0)
    assert valley.lowest.error < 0.05
    assert all(rise.mean > 4 * rise.error for rise in valley.rises.values())
    # The scale of the noise may depend on anything, δ itself too; a minimum elsewhere would be
    # found.
    tied = theory.measure_valley(bend, 2, 12, noise=bend, generator=generator(4))
    assert within(tied.lowest, 0.0)


def test_a_deviation_at_the_origin_costs_nothing():
    def at_zero(x):
        return (x == 0).all(1).double()

    blind = theory.measure_valley(at_zero, 2, 12, zero_share=0.2, generator=generator())
    assert blind.rises[1.0].mean == pytest.approx(0.0, abs=1e-20)
    noisy = theory.measure_valley(
        at_zero, 2, 12, zero_share=0.2, noise=lambda x: x[:, 0], generator=generator()
    )
    assert math.isnan(noisy.lowest.mean)


def test_condition_three_fails_for_symmetric_features():
    for distribution in ("gaussian", "uniform"):
        condition = theory.measure_condition_three(distribution, 2, 12, generator=generator(5))
        assert within(condition.different, 0.0)
        assert not condition.holds
    # E[AAᵀ] = I/(M − d − 1) for Gaussian features, so a row of A has M·E[a²] = 1/(M − d − 1).
    condition = theory.measure_condition_three("gaussian", 2, 12, generator=generator(6))
    assert within(condition.same, 1.0 / (12 * (12 - 2 - 1)), errors=5.0)


def test_condition_three_holds_for_very_skewed_features_and_so_does_the_conclusion_for_small_steps():
    condition = theory.measure_condition_three("skewed", 1, 2, generator=generator(7))
    # Both values small: E[uv/(u² + v²)²] over the uniforms, by quadrature; one of them large: next
    # to nothing.
    p, u = theory.RARE, torch.linspace(0.5, 1.5, 2001, dtype=torch.float64) / math.sqrt(13 / 12)
    u, v = torch.meshgrid(u, u, indexing="ij")
    exact = (1 - p) ** 2 * (1 - p) / p * float((u * v / (u * u + v * v) ** 2).mean())
    assert condition.different.mean == pytest.approx(exact, rel=0.02)
    assert condition.different.mean > 25
    assert condition.threshold == 1.0
    assert condition.holds
    steps = theory.compare_steps("skewed", 1, 2, generator=generator(8))
    assert steps.nearer_for_small_steps
    # ... but not for every step size that converges, which is what the proposition says.
    assert steps.largest_good_step < steps.largest_convergent_step


def test_the_conclusion_fails_for_gaussian_features():
    steps = theory.compare_steps("gaussian", 2, 40, generator=generator(9))
    assert not steps.nearer_for_small_steps
    assert steps.largest_good_step == 0.0
    # g ≡ 1 is orthogonal to centred features: what is left is the floor of unit noise.
    assert within(steps.curvature, theory.noise_floor(2, 40), errors=6.0)


def test_step_sizes_are_what_the_parabolas_say():
    steps = theory.compare_steps("skewed", 1, 2, generator=generator(8))
    rlp = steps.curvature.mean

    def left(curvature, size):
        return abs(1 - 2 * size * curvature)

    good = steps.largest_good_step
    assert left(rlp, 0.99 * good) < left(1.0, 0.99 * good)
    assert left(rlp, 1.01 * good) > left(1.0, 1.01 * good)
    assert (
        left(rlp, 0.999 * steps.largest_convergent_step)
        < 1.0
        < left(rlp, 1.001 * steps.largest_convergent_step)
    )


def test_the_empirical_loss_converges_where_the_definition_is_finite():
    few = theory.empirical_error(40, 2, 12, generator=generator(1))
    many = theory.empirical_error(1000, 2, 12, generator=generator(1))
    assert many < 0.5 * few
    assert math.isnan(theory.empirical_error(40, 2, 3, generator=generator(1)))


def test_coverage_of_algorithm_one_as_printed():
    printed = balanced_subsets(103, 100, 3, method="paper", generator=generator())
    # 3 rows are left over after every shuffle: with few subsets some stay out altogether.
    worst = max(
        theory.coverage(balanced_subsets(199, 100, 2, method="paper", generator=generator(s)), 199)[
            "missing"
        ]
        for s in range(5)
    )
    assert worst > 0
    assert theory.coverage(printed, 103)["equal"] == 0
    ours = theory.coverage(balanced_subsets(199, 100, 2, generator=generator()), 199)
    assert ours["missing"] == 0
    assert ours["most"] - ours["least"] <= 1
    twice = theory.coverage(torch.tensor([[0, 1], [1, 0]]), 3)
    assert twice == {"missing": 1, "equal": 1, "least": 0, "most": 2}


def test_shared_planes_mean_equal_functions_on_the_rows_away_from_the_origin():
    x = theory.draw_features("gaussian", 8, 2, generator=generator())
    assert theory.plane_nullity(x, 3) == 0
    assert theory.plane_nullity(x, 7) == 0
    x[0] = 0.0
    assert theory.plane_nullity(x, 3) == 1  # the value at the origin is free
    assert (
        theory.plane_nullity(x, 8) == 6
    )  # one subset only: everything but the plane itself is free
    with pytest.raises(ValueError, match="at most 20000, got"):
        theory.plane_nullity(torch.randn(40, 2, generator=generator()), 20)
