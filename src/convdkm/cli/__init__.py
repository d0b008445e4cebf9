"""The command line, ``convdkm``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; errors that a user can mend are one message, without a traceback."""
    from convdkm.cli.app import build_app
    from convdkm.errors import ConvDKMError

    try:
        build_app(options="train" in sys.argv[1:2])()
    except ConvDKMError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output, such as `head`, has seen enough.
        sys.stderr.close()
        sys.exit(0)
