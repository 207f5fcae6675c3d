"""What the papers left open, in the form of their experiments."""

from millrace.experiments.beyond import cascade, content, convergence, correlated, drift, initial_delay, peers
from millrace.experiments.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    initial_delay.EXPERIMENT,
    correlated.EXPERIMENT,
    drift.EXPERIMENT,
    content.EXPERIMENT,
    convergence.EXPERIMENT,
    peers.EXPERIMENT,
    cascade.EXPERIMENT,
)
