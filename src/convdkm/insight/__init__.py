"""What goes on inside a machine, layer by layer, as values.

:func:`readings` and :func:`gradient_ratios` are the instruments, cheap enough for every epoch;
:func:`look_into` looks into a machine thoroughly.
"""

from convdkm.insight.instruments import Reading, gradient_ratios, readings
from convdkm.insight.look import Insight, LayerInsight, effective_rank, look_into
from convdkm.insight.similarity import cka, cluster_order

__all__ = [
    "Insight",
    "LayerInsight",
    "Reading",
    "cka",
    "cluster_order",
    "effective_rank",
    "gradient_ratios",
    "look_into",
    "readings",
]
