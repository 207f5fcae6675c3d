"""The operators of an eddy: each lets one module work, a step at a time."""
