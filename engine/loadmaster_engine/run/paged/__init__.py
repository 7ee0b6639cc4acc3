"""Many sequences on one rank: keys and values in blocks, packed batches, and how every request draws its tokens."""
