"""One script per producer, run with the interpreter of its environment: quantise, save, and keep what it decodes itself.

Nothing of loadmaster is installed there, so these scripts import the producer's packages and each other alone.
"""
