"""An Initial Study of Overheads of Eddies (Deshpande 2004): wall-clock runs on Wisconsin tables."""

from millrace.experiments.experiment import Experiment
from millrace.experiments.overheads import fig5, fig6, fig7

EXPERIMENTS: tuple[Experiment, ...] = (fig5.EXPERIMENT, fig6.EXPERIMENT, fig7.EXPERIMENT)
