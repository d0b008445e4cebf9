"""``python -m convdkm``, and so ``torchrun -m convdkm``: the command line."""

from convdkm.cli import main

main()
