"""Pages about runs, and what they show as values: ``look_into`` needs no page."""

from convdkm.insight.look import Insight, LayerInsight, effective_rank, look_into
from convdkm.insight.similarity import cka, cluster_order
from convdkm.report.outcome import Outcome
from convdkm.report.write import write_report

__all__ = [
    "Insight",
    "LayerInsight",
    "Outcome",
    "cka",
    "cluster_order",
    "effective_rank",
    "look_into",
    "write_report",
]
