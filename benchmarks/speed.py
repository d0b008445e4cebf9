"""Speed and memory of the machine beside a textbook version and a CNN.

    python benchmarks/speed.py --quick --json speed.json

All options are those of ``convdkm bench``, which this is; see ``convdkm bench --help``.
"""

import argparse
import sys

from convdkm.cli import run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _, options = parser.parse_known_args()
    sys.exit(run(["bench", *options]))


if __name__ == "__main__":
    main()
