"""Whether the settings of a sweep come in the order of the paper, row by row.

For every metric and data set, each row is compared with the nearest above it that has a published
figure (for ν: a larger ν): the difference of the means in the published table and in ours, each
with the p-value of Welch's t-test, two-sided, over the seeds. An order "holds" where ours has the
sign of the published difference, or where neither is significant at 5%. It is "reversed" where ours
is significant the other way, "open" where ours goes the other way but not significantly, and
"differs" where only ours is significant. The last line says which rows are best in ours and in the
paper's, by the paper's own test (one-tailed, 5%).

    convdkm sweep nu --dataset mnist,cifar10 … -o out
    python benchmarks/orderings.py out --metric test_accuracy
"""

import argparse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from convdkm.lab.studies.statistics import LEVEL, Cell, Summary, p_value, similar_to_best
from convdkm.lab.studies.sweeps.results import Block, Results
from convdkm.lab.studies.sweeps.specification import METRICS


def verdict(ours: float, p_ours: float, theirs: float, p_theirs: float) -> str:
    """What our difference says of the published one."""
    clear, published_clear = p_ours < LEVEL, p_theirs < LEVEL
    if published_clear:
        if ours * theirs > 0:
            return "holds" if clear else "holds, not significant"
        return "reversed" if clear else "open"
    return "differs" if clear else "holds (no difference)"


def pair(cell: Cell) -> tuple[Summary, Summary] | None:
    """Ours and the published figure, where both are there and have an error."""
    if cell.ours is None or cell.published is None or cell.ours.error is None:
        return None
    return cell.ours, Summary.of_published(cell.published)


def different(first: Summary, second: Summary) -> tuple[float, float]:
    """``second − first``, and its p-value."""
    p = p_value(first, second, "two-sided")
    return second.mean - first.mean, 1.0 if p is None else p


def said(block: Block, column: int) -> Iterator[str]:
    """What there is to say of a column: each row beside the one above, and which are the best."""
    known = [(line.row.label, pair(line.cells[column])) for line in block.lines]
    rows = [(label, *both) for label, both in known if both is not None]
    for (above, ours_above, theirs_above), (label, ours, theirs) in pairwise(rows):
        one = different(ours_above, ours)
        other = different(theirs_above, theirs)
        yield (
            f"{above} → {label}: ours {one[0]:+.4f} (p {one[1]:.3f}), published {other[0]:+.4f}"
            f" (p {other[1]:.3f}): {verdict(*one, *other)}"
        )
    best = (
        similar_to_best({label: ours for label, ours, _ in rows}),
        similar_to_best({label: theirs for label, _, theirs in rows}),
    )
    words = [", ".join(label for label, _, _ in rows if label in names) for names in best]
    yield f"best, or not significantly worse: ours {words[0]}; published {words[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweep", type=Path, metavar="SWEEP", help="folder of convdkm sweep")
    parser.add_argument("--metric", choices=list(METRICS), help="this metric alone")
    arguments = parser.parse_args()
    for table in Results(arguments.sweep).tables():
        for block in table.blocks:
            if arguments.metric not in (None, block.metric):
                continue
            print(f"\n{table.title}: {block.title}")
            for column, dataset in enumerate(table.datasets):
                for words in said(block, column):
                    print(f"  {dataset:<10} {words}")


if __name__ == "__main__":
    main()
