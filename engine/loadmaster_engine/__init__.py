"""The kernel: plan, ledger, arenas, transfer, executors, workers and runtime.

It knows no file format, no quantisation, no adapter kind and no split rule; plugins bring those through the contract in
`loadmaster_hookspecs`.
"""
