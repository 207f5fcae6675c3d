"""Eddies: Continuously Adaptive Query Processing (Avnur & Hellerstein 2000)."""

from millrace.experiments.eddies import delayed, indexes, joins, selections
from millrace.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    *selections.EXPERIMENTS,
    *joins.EXPERIMENTS,
    *indexes.EXPERIMENTS,
    *delayed.EXPERIMENTS,
)
