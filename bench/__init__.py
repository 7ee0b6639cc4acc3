"""The benchmark: how long loadmaster and its peers take from a process's start to a model in memory, and to a first token.

Run `make bench`, or `python -m bench --help`. Not part of the distribution. This package's top level imports nothing, because
the scripts in `bench.runs` are started in environments that hold one peer and little else.
"""
