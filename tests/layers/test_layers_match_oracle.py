"""Every block of every layer against the oracle, in both precisions."""

import pytest

import oracle
from oracle.cases import DTYPES, GROUPS, TOLERANCE

ELSEWHERE = ("kernels", "head", "likelihoods")
CASES = [case for name, group in GROUPS.items() if name not in ELSEWHERE for case in group]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_blocks_match_the_oracle(case, dtype):
    for block, pair in case.pairs(dtype).items():
        assert oracle.deviation(*pair) <= TOLERANCE[dtype], block


def test_every_combination_of_appendix_c_is_covered():
    for mode in ("training", "evaluation after 3 batches"):
        covered = {
            case.label.split()[1]
            for case in GROUPS["norm"]
            if case.label.endswith(f"(3, 4) {mode}")
        }
        assert len(covered) == 3 * 5 * 3 * 3


def test_labels_are_unique():
    labels = [case.label for group in GROUPS.values() for case in group]
    assert len(labels) == len(set(labels))
