"""What the papers left open, in the form of their experiments."""

from millrace.experiments.beyond import content, correlated, drift, initial_delay
from millrace.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    initial_delay.EXPERIMENT,
    correlated.EXPERIMENT,
    drift.EXPERIMENT,
    content.EXPERIMENT,
)
