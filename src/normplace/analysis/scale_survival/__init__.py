"""How much of a per-row scale survives each norm."""
