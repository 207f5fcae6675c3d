"""Lifting the Burden of History from Adaptive Query Processing (Deshpande & Hellerstein 2004)."""

from millrace.experiments.experiment import Experiment
from millrace.experiments.stairs import (
    fig7_i,
    fig7_ii,
    fig7_iii,
    fig7_wall,
    fig8,
    fig9,
    fig9_wall,
    scrambling,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    fig7_i.EXPERIMENT,
    fig7_ii.EXPERIMENT,
    fig7_iii.EXPERIMENT,
    fig7_wall.EXPERIMENT,
    fig8.EXPERIMENT,
    fig9.EXPERIMENT,
    fig9_wall.EXPERIMENT,
    scrambling.EXPERIMENT,
)
