"""The executor that runs every rank in a process of its own, forked from one server that imported the heavy modules once.

`executor` is what the host uses; `forkserver` and `worker` run in the child processes; `frames`, `channel` and `messages` are
what they speak; `server`, `crew` and `diagnosis` are the host's side.
"""
