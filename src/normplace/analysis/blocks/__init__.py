"""ResidualAdd blocks: attention, slots of norms, placement names."""
