"""An Initial Study of Overheads of Eddies (Deshpande 2004): wall-clock runs on Wisconsin tables."""

from millrace.experiments.experiment import Experiment
from millrace.experiments.overheads import fig5, star

EXPERIMENTS: tuple[Experiment, ...] = (fig5.EXPERIMENT, star.FIG6, star.FIG7)
