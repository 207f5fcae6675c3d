"""Using State Modules for Adaptive Query Processing (Raman, Deshpande & Hellerstein 2003)."""

from millrace.experiments.experiment import Experiment
from millrace.experiments.stems import (
    algorithms,
    competition,
    fig7,
    fig8,
    growing,
    interactive,
    shared,
    spanning_tree,
    unbuilt,
)

EXPERIMENTS: tuple[Experiment, ...] = (
    fig7.EXPERIMENT,
    fig8.EXPERIMENT,
    competition.EXPERIMENT,
    spanning_tree.EXPERIMENT,
    interactive.EXPERIMENT,
    interactive.CHANGING,
    algorithms.EXPERIMENT,
    unbuilt.EXPERIMENT,
    shared.EXPERIMENT,
    growing.EXPERIMENT,
)
