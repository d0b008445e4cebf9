"""Mean, standard error and Welch's test, against SciPy on the raw figures."""

import numpy as np
import pytest
from scipy import stats

from convdkm.lab.studies.statistics import Summary, p_value, similar_to_best
from convdkm.lab.studies.sweeps.specification import Published


def test_mean_and_standard_error_are_the_paper_s():
    values = [99.1, 99.3, 99.2, 99.4]
    summary = Summary.of(values)
    assert summary.mean == pytest.approx(np.mean(values))
    assert summary.error == pytest.approx(stats.sem(values))
    assert Summary.of([99.1]) == Summary(99.1, None, 1)
    assert Summary.of([]) is None


@pytest.mark.parametrize("seed", range(5))
def test_the_tests_are_those_of_scipy(seed):
    random = np.random.default_rng(seed)
    first, second = random.normal(1.0, 0.5, 4), random.normal(0.5, 0.1, 3)
    one = stats.ttest_ind(first, second, equal_var=False, alternative="greater").pvalue
    two = stats.ttest_ind(first, second, equal_var=False).pvalue
    a, b = Summary.of(list(first)), Summary.of(list(second))
    assert p_value(a, b, "greater") == pytest.approx(one)
    assert p_value(a, b, "two-sided") == pytest.approx(two)


def test_bold_is_the_best_and_what_is_not_significantly_worse():
    summaries = {
        "best": Summary(99.20, 0.02, 4),
        "close": Summary(99.16, 0.05, 4),
        "worse": Summary(99.05, 0.03, 4),
        "far": Summary(72.19, 0.11, 4),
    }
    assert similar_to_best(summaries) == {"best", "close"}
    assert similar_to_best({}) == frozenset()


def test_without_errors_only_the_best_is_bold():
    single = {"a": Summary(99.0, None, 1), "b": Summary(98.9, None, 1), "c": Summary(99.0, None, 1)}
    assert similar_to_best(single) == {"a", "c"}
    assert p_value(single["a"], single["b"], "greater") is None


def test_seeds_that_agree_exactly_are_told_apart_by_their_means():
    same, other = Summary(100.0, 0.0, 4), Summary(99.0, 0.0, 4)
    assert similar_to_best({"a": same, "b": same, "c": other}) == {"a", "b"}
    assert p_value(same, same, "two-sided") == 1.0
    assert p_value(same, other, "two-sided") == 0.0


def test_a_printed_error_of_nothing_is_not_taken_for_certainty():
    figure = Published.model_validate("99.76 ± 0.00")
    assert Summary.of_published(figure) == Summary(99.76, 0.005, 4)
    assert Summary.of_published(Published.model_validate("92.69")).error is None
