"""What all kinds of adapters share that peft writes: how configurations are judged, and how names find modules."""
