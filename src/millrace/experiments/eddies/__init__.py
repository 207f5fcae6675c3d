"""Eddies: Continuously Adaptive Query Processing (Avnur & Hellerstein 2000), one experiment a file."""

from millrace.experiments.eddies import fig4, fig5, fig6, fig7, fig8, fig9, fig10, fig11, fig12, fig13
from millrace.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    fig4.EXPERIMENT,
    fig5.EXPERIMENT,
    fig6.EXPERIMENT,
    fig7.EXPERIMENT,
    fig8.EXPERIMENT,
    fig9.EXPERIMENT,
    fig10.EXPERIMENT,
    fig11.EXPERIMENT,
    fig12.EXPERIMENT,
    fig13.EXPERIMENT,
)
