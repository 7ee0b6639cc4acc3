"""How linear modules multiply on the CPU: arranged once or as they are, in the form that this processor is fast with."""
