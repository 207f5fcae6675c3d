"""Lifting the Burden of History from Adaptive Query Processing (Deshpande & Hellerstein 2004)."""

from millrace.experiments.experiment import Experiment
from millrace.experiments.stairs import fig7_i_iii, fig7_ii, fig8, fig9, races, scrambling, windows

EXPERIMENTS: tuple[Experiment, ...] = (
    fig7_i_iii.IN_ALL,
    fig7_ii.EXPERIMENT,
    fig7_i_iii.OVER_TIME,
    races.FIG7,
    fig8.EXPERIMENT,
    fig9.EXPERIMENT,
    races.FIG9,
    scrambling.EXPERIMENT,
    windows.EXPERIMENT,
)
