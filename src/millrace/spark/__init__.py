"""Running blocks on Spark: placement, HyperCube shares, block exchange, tasks and their figures."""
