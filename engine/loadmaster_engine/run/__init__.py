"""Running on one rank: collectives between ranks, steps of the model, sampling, and the service that answers the host."""
