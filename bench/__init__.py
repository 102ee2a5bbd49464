"""Benchmarks: shardd against a bare-C floor server, and the measurements behind the decision records."""
