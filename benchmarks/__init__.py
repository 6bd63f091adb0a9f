"""Side-by-side benchmark against TRL, scaling curves, micro-benchmarks."""
