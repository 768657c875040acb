"""Benchmarks, each measured beside its raw limit in the same run.

The harness is `harness`; every other module holds benchmarks.
"""
