"""The bench: speed and memory of the machine beside a textbook version of it and a CNN.

:mod:`~convdkm.lab.bench.textbook` is the paper's equations in float64, line by line;
:mod:`~convdkm.lab.bench.cnn` the network with the same convolutions. ``convdkm bench`` runs it.
"""
